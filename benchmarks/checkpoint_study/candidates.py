"""The orders that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checkpoint_study.foresight import Foresight
from checkpoint_study.orders import Lru, Score, Scored
from checkpoint_study.prompts import Place, Prompts
from checkpoint_study.replay import CheckpointOrder
from exllamav3_adapters.policies.gds import GreedyDualSize
from exllamav3_adapters.policies.prefill_cost import PrefillCost

LRU = "lru"
DEFAULT = "gds, defaults"
PAPER = "gds, all weigh alike"
FORESIGHT = "foresight"
NO_LIMIT = "no limit"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    make: Callable[[Prompts, PrefillCost], CheckpointOrder]
    """From the workload and what prefills cost."""
    quick: bool = False
    """Is part of `--quick`, and of the plot."""


def all_candidates() -> Iterator[Candidate]:
    """The first is what the others are held against."""
    yield Candidate(name=LRU, make=lambda prompts, cost: Lru(), quick=True)
    yield Candidate(name=DEFAULT, make=lambda prompts, cost: GreedyDualSize[Place](cost), quick=True)
    yield gds(PAPER, inner_weight=1.0, quick=True)
    yield scored("gds x frequency", lambda use, cost, _: use.inflation + use.times * cost, quick=True)
    yield Candidate(name=FORESIGHT, make=Foresight, quick=True)
    for weight in (0.5, 0.125, 0.06):
        yield gds(f"gds, inner weight {weight:g}", inner_weight=weight)
    yield scored("gds, costs as of the last use", lambda use, cost, _: use.inflation + use.cost)
    yield Candidate(name="gds, costs from 0", make=_costs_from_start)
    yield scored("cost alone, no ageing", lambda use, cost, _: cost, ages=False)
    yield scored("inner ones first, then lru", lambda use, cost, checkpoint: -len(checkpoint.children), ages=False)
    yield believing("gds, defaults, that believes E = 0", PrefillCost(1.0, 0.0))
    yield believing("gds, defaults, that believes D / E = 5.14", PrefillCost(5.14, 1.0))
    yield believing("gds, defaults, that believes D / E = 488", PrefillCost(488.0, 1.0))


def gds(name: str, *, inner_weight: float, quick: bool = False) -> Candidate:
    return Candidate(
        name=name, make=lambda prompts, cost: GreedyDualSize[Place](cost, inner_weight=inner_weight), quick=quick
    )


def believing(name: str, wrong: PrefillCost) -> Candidate:
    """The default, where prefills cost something else than it is told."""
    return Candidate(name=name, make=lambda prompts, cost: GreedyDualSize[Place](wrong))


def scored(name: str, score: Score, *, ages: bool = True, quick: bool = False) -> Candidate:
    return Candidate(name=name, make=lambda prompts, cost: Scored(score, cost, ages=ages), quick=quick)


def _costs_from_start(prompts: Prompts, cost: PrefillCost) -> CheckpointOrder:
    unit = cost.normalised()
    return Scored(lambda use, _, checkpoint: use.inflation + unit.between(0, checkpoint.position), cost)
