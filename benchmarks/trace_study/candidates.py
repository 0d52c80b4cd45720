"""The eviction orders that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from exllamav3_adapters.policies.leaf_order import credited_pages
from trace_study.credit import AgingLfu, CreditAmongEquals, CreditedRecency, HitCredit, SharedHeadCredit
from trace_study.credited_share import CreditedShare
from trace_study.leaf_first import LeafFirst, NextUse, Recency
from trace_study.replay import Order
from trace_study.stock import Lru, Tree
from trace_study.workload import Workload

MINUTE, HOUR = 60.0, 3600.0
HALF_LIVES = {
    "1 min": MINUTE,
    "5 min": 5 * MINUTE,
    "15 min": 15 * MINUTE,
    "1 h": HOUR,
    "4 h": 4 * HOUR,
    "24 h": 24 * HOUR,
}

Parameters = dict[str, float | str]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    make: Callable[[Workload, int], Order]
    """From the workload and the capacity in pages."""
    parameters: Parameters = field(default_factory=dict)
    quick: bool = False
    """Is part of `--quick`."""
    plotted: bool = False


def stock_tree() -> Candidate:
    return Candidate(name="stock tree", make=lambda workload, _: Tree(workload), quick=True, plotted=True)


def default_policy() -> Candidate:
    """`aging_lfu` with the defaults of the settings."""
    return credited_share("aging_lfu, defaults", quick=True, plotted=True)


def clairvoyant() -> Candidate:
    return Candidate(
        name="clairvoyant bound",
        make=lambda workload, _: LeafFirst(workload, NextUse(workload)),
        quick=True,
        plotted=True,
    )


def all_candidates() -> Iterator[Candidate]:
    yield stock_tree()
    yield Candidate(name="stock lru", make=lambda workload, _: Lru(workload), quick=True, plotted=True)
    yield Candidate(
        name="leaf-LRU", make=lambda workload, _: LeafFirst(workload, Recency(workload)), quick=True, plotted=True
    )
    yield default_policy()
    yield clairvoyant()
    for label, half_life in HALF_LIVES.items():
        yield aging_lfu(f"aging-LFU {label}", half_life=half_life)
        yield aging_lfu(f"aging-LFU {label}, 64 pages, weight 4", half_life=half_life, pages=64, weight=4.0)
    yield aging_lfu("aging-LFU 5 min, 64 pages", half_life=5 * MINUTE, pages=64)
    yield aging_lfu("aging-LFU 5 min, weight 4", half_life=5 * MINUTE, weight=4.0)
    for label in ("1 min", "5 min", "15 min", "1 h"):
        yield credited_recency(f"shared heads added to recency {label}", half_life=HALF_LIVES[label])
    for label in ("1 min", "5 min", "15 min"):
        yield credit_among_equals(f"shared heads first within {label}", seconds=HALF_LIVES[label])
    yield from shares()


def shares() -> Iterator[Candidate]:
    """`aging_lfu` with one setting changed at a time."""
    for label, half_life in HALF_LIVES.items():
        yield credited_share(f"share, half-life {label}", half_life=half_life)
    for share in (0.01, 0.05, 0.1, 0.2, 1.0):
        yield credited_share(f"share of {share:.0%}", share=share)
    for pages in (16, 32, 128, 0):
        yield credited_share(f"share, {pages or 'all'} pages", pages=pages)
    for weight in (1.0, 4.0, 16.0):
        yield credited_share(f"share, weight {weight:g}", weight=weight)
    for label in ("5 min", "1 h", "24 h"):
        half_life = HALF_LIVES[label]
        yield Candidate(
            name=f"share, every hit, half-life {label}",
            make=lambda workload, capacity, half_life=half_life: CreditedShare(  # type: ignore[misc]
                workload,
                HitCredit(workload, half_life=half_life, pages=64),
                credited_pages=credited_pages(capacity, 0.03),
            ),
            parameters={"half_life_seconds": half_life, "hit_cap_pages": 64, "share": 0.03, "credit": "every hit"},
        )


def aging_lfu(name: str, *, half_life: float, pages: int = 0, weight: float = 0.0) -> Candidate:
    return Candidate(
        name=name,
        make=lambda workload, _: LeafFirst(
            workload, AgingLfu(workload, half_life=half_life, pages=pages, weight=weight)
        ),
        parameters={"half_life_seconds": half_life, "hit_cap_pages": pages, "weight_cap": weight},
        quick=half_life == 5 * MINUTE and pages > 0,
        plotted=half_life == 5 * MINUTE and pages > 0 and weight > 0,
    )


def credited_recency(name: str, *, half_life: float) -> Candidate:
    return Candidate(
        name=name,
        make=lambda workload, _: LeafFirst(
            workload, CreditedRecency(workload, SharedHeadCredit(workload, half_life=half_life, pages=64, weight=4.0))
        ),
        parameters={"half_life_seconds": half_life, "hit_cap_pages": 64, "weight_cap": 4.0},
    )


def credit_among_equals(name: str, *, seconds: float) -> Candidate:
    return Candidate(
        name=name,
        make=lambda workload, _: LeafFirst(
            workload,
            CreditAmongEquals(workload, SharedHeadCredit(workload, half_life=HOUR, pages=64), seconds=seconds),
        ),
        parameters={"half_life_seconds": HOUR, "hit_cap_pages": 64, "class_seconds": seconds},
    )


def credited_share(
    name: str,
    *,
    share: float = 0.03,
    half_life: float = HOUR,
    pages: int = 64,
    weight: float = 0.0,
    quick: bool = False,
    plotted: bool = False,
) -> Candidate:
    return Candidate(
        name=name,
        make=lambda workload, capacity: CreditedShare(
            workload,
            SharedHeadCredit(workload, half_life=half_life, pages=pages, weight=weight),
            credited_pages=credited_pages(capacity, share),
        ),
        parameters={"half_life_seconds": half_life, "hit_cap_pages": pages, "weight_cap": weight, "share": share},
        quick=quick,
        plotted=plotted,
    )
