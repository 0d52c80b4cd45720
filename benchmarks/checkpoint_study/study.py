"""Every candidate on every workload and number of slots, and what is required of the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trace_study.estimates import Estimate, SessionBootstrap
from trace_study.requirements import Requirement

from checkpoint_study.candidates import DEFAULT, NO_LIMIT, Candidate
from checkpoint_study.orders import Lru
from checkpoint_study.prompts import Placement, Prompts
from checkpoint_study.replay import Resumed, replay
from exllamav3_adapters.policies.prefill_cost import PrefillCost

SLOTS = (16, 32, 64, 128)


@dataclass(frozen=True)
class Case:
    """A workload and where its checkpoints are made."""

    users: int
    placement: Placement
    prompts: Prompts
    cost: PrefillCost

    @property
    def name(self) -> str:
        return f"{self.prompts.workload.name}, checkpoints at {_described(self.placement)}"


def _described(placement: Placement) -> str:
    *others, last = [str(part.name).removesuffix("_ENDS").lower() + "s" for part in placement]
    return f"ends of {', '.join(others)} and {last}" if others else f"ends of {last}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One candidate on one workload and number of slots."""

    workload: str
    users: int
    placement: str
    slots: int
    policy: str
    quick: bool
    recomputed_tokens: int
    recomputed_cost: Estimate
    """Percent of what all prompts cost without any checkpoint."""
    saved_of_lru: Estimate
    """Percent less recomputed cost than under `lru`."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def outcomes(case: Case, candidates: Sequence[Candidate], on_run: Callable[[str], None]) -> Iterator[Outcome]:
    """The first candidate is what the others are held against."""
    bootstrap = SessionBootstrap(case.prompts.workload)
    unlimited = replay(case.prompts, len(case.prompts.positions), Lru())
    for slots in SLOTS:
        base: NDArray[np.float64] | None = None
        for candidate in candidates:
            on_run(f"{case.users} users, {slots} slots: {candidate.name}")
            resumed = replay(case.prompts, slots, candidate.make(case.prompts, case.cost))
            base = costs(case, resumed) if base is None else base
            yield _outcome(case, bootstrap, candidate.name, candidate.quick, slots, resumed, base)
        assert base is not None
        yield _outcome(case, bootstrap, NO_LIMIT, True, slots, unlimited, base)


def costs(case: Case, resumed: Resumed) -> NDArray[np.float64]:
    """By request, of computing its prompt from where it resumed."""
    pairs = zip(case.prompts.prompts, resumed.tolist(), strict=True)
    return np.array([case.cost.between(position, prompt.tokens) for prompt, position in pairs])


def _outcome(
    case: Case,
    bootstrap: SessionBootstrap,
    policy: str,
    quick: bool,
    slots: int,
    resumed: Resumed,
    base: NDArray[np.float64],
) -> Outcome:
    recomputed, cold = costs(case, resumed), costs(case, np.zeros_like(resumed))
    return Outcome(
        workload=case.name,
        users=case.users,
        placement=_described(case.placement),
        slots=slots,
        policy=policy,
        quick=quick,
        recomputed_tokens=int(case.prompts.workload.prompt_tokens.sum() - resumed.sum()),
        recomputed_cost=bootstrap.share(recomputed, cold),
        saved_of_lru=bootstrap.share(base - recomputed, base),
    )


def requirements(found: Sequence[Outcome]) -> list[Requirement]:
    """Of the default: percent of recomputed cost less than under `lru`."""
    return [
        Requirement(
            f"{outcome.workload}, {outcome.slots} slots",
            outcome.saved_of_lru.value,
            25.0 if (outcome.users, outcome.slots) == (16, 32) else 0.0,
        )
        for outcome in found
        if outcome.policy == DEFAULT
    ]
