"""Every candidate on every workload and cache size, and what is required of the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trace_study.candidates import Candidate, Parameters
from trace_study.estimates import Estimate, SessionBootstrap
from trace_study.replay import replay
from trace_study.workload import PAGE_TOKENS, Workload

_CLAUDE_CODE_PAGES = (1024, 2048, 4096, 8192)
_MOONCAKE_FRACTIONS = (0.05, 0.10, 0.25, 0.50)


@dataclass(frozen=True)
class Case:
    """A workload on caches of several sizes."""

    workload: Workload
    capacities: dict[str, int]
    """Pages, by how the size is called."""

    @cached_property
    def bootstrap(self) -> SessionBootstrap:
        return SessionBootstrap(self.workload)


def claude_code_case(workload: Workload) -> Case:
    return Case(workload, {f"{pages // 1024}k pages": pages for pages in _CLAUDE_CODE_PAGES})


def mooncake_case(workload: Workload) -> Case:
    return Case(workload, {f"{f:.0%}": int(workload.num_pages * f) for f in _MOONCAKE_FRACTIONS})


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One candidate on one workload and size. Rates in percent; differences in points, against stock `tree`."""

    workload: str
    size: str
    capacity_pages: int
    policy: str
    parameters: Parameters
    plotted: bool
    requests: int
    first_requests: int
    recomputed_tokens: int
    token_hit_rate: Estimate
    first_request_hit_rate: Estimate
    token_hit_difference: Estimate
    first_request_difference: Estimate

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def outcomes(case: Case, candidates: Sequence[Candidate], on_run: Callable[[str], None]) -> Iterator[Outcome]:
    """The first candidate is what the others are held against."""
    for size, capacity in case.capacities.items():
        base: NDArray[np.int64] | None = None
        for candidate in candidates:
            on_run(f"{case.workload.name}, {size}: {candidate.name}")
            hits = replay(case.workload, capacity, candidate.make(case.workload, capacity))
            base = hits if base is None else base
            yield _outcome(case, size, candidate, hits, base)


def _outcome(case: Case, size: str, candidate: Candidate, hits: NDArray[np.int64], base: NDArray[np.int64]) -> Outcome:
    workload, counted = case.workload, case.workload.counted
    return Outcome(
        workload=workload.name,
        size=size,
        capacity_pages=case.capacities[size],
        policy=candidate.name,
        parameters=candidate.parameters,
        plotted=candidate.plotted,
        requests=int(counted.sum()),
        first_requests=int((workload.first & counted).sum()),
        recomputed_tokens=int(workload.prompt_tokens[counted].sum() - hits[counted].sum() * PAGE_TOKENS),
        token_hit_rate=case.bootstrap.token_hit_rate(hits),
        first_request_hit_rate=case.bootstrap.first_request_hit_rate(hits),
        token_hit_difference=case.bootstrap.token_hit_difference(hits, base),
        first_request_difference=case.bootstrap.first_request_difference(hits, base),
    )
