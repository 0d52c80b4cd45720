"""Whether two greedy answers are the same, or part where rounding decided between two tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpu_check.check import Figures, PartFailed
from gpu_check.requests import Answer


@dataclass(frozen=True, slots=True)
class Rounding:
    """What a GPU's rounding may do, in nats. It adds in another order for other lengths of a step.

    Where two tokens are closer than `near_tie` either may come first, and the answers have nothing in common from there
    on. `drift` is by how much the log probability of the same token after the same tokens may differ.
    """

    near_tie: float
    drift: float


ATTENTION: Final = Rounding(near_tie=0.1, drift=0.5)
"""Sums of 16-bit numbers."""
RECURRENT: Final = Rounding(near_tie=0.3, drift=1.0)
"""A state is carried on token by token, or in chunks, with 8 bits of mantissa in between."""


@dataclass(slots=True)
class Comparison:
    """Of many answers with their cold ones. `largest_drift` is in nats, over all tokens before the answers part."""

    rounding: Rounding
    compared: int = 0
    equal: int = 0
    near_ties: int = 0
    largest_drift: float = 0.0
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, cold: Answer, other: Answer) -> None:
        """`what` names the other answer in a fault."""
        self.compared += 1
        for place, (ours, theirs) in enumerate(zip(cold.logprobs, other.logprobs, strict=False)):
            if ours.token != theirs.token:
                self._part(what, place, ours.logprob - ours.top[1][1])
                return
            self.largest_drift = max(self.largest_drift, abs(ours.logprob - theirs.logprob))
        if cold.text == other.text and len(cold.logprobs) == len(other.logprobs):
            self.equal += 1
        else:
            self.faults.append(f"{what}: {len(other.logprobs)} tokens instead of {len(cold.logprobs)}")

    def _part(self, what: str, place: int, gap: float) -> None:
        """At token `place`, where the cold answer's best two are `gap` nats apart."""
        if gap <= self.rounding.near_tie:
            self.near_ties += 1
        else:
            self.faults.append(f"{what}: another token at {place}, where the best two are {gap:.3f} nats apart")

    def check(self) -> None:
        """Raises PartFailed."""
        if self.faults:
            raise PartFailed("; ".join(self.faults))
        if 2 * self.near_ties > self.compared:
            raise PartFailed(f"{self.near_ties} of {self.compared} answers part, if only at near ties")
        if self.largest_drift > self.rounding.drift:
            raise PartFailed(f"log probabilities differ by up to {self.largest_drift:.3f} nats")

    def figures(self) -> Figures:
        return {
            "answers_compared": self.compared,
            "answers_equal": self.equal,
            "answers_parted_at_a_near_tie": self.near_ties,
            "largest_drift_nats": round(self.largest_drift, 5),
        }
