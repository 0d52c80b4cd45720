"""Whether two greedy answers are the same, or part where rounding decided between two tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_check.check import Figures, PartFailed
from gpu_check.requests import Answer

NEAR_TIE_NATS = 0.05
"""A GPU adds in another order for other lengths of a step, so that logits of 16 bits differ in their last places. Two
tokens that close may change places; the answers have nothing in common from there on."""
LARGEST_DRIFT_NATS = 0.25
"""By which the log probability of the same token after the same tokens may differ."""


@dataclass(slots=True)
class Comparison:
    """Of many answers with their cold ones. `largest_drift` is in nats, over all tokens before the answers part."""

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
        if gap <= NEAR_TIE_NATS:
            self.near_ties += 1
        else:
            self.faults.append(f"{what}: another token at {place}, where the best two are {gap:.3f} nats apart")

    def check(self) -> None:
        """Raises PartFailed."""
        if self.faults:
            raise PartFailed("; ".join(self.faults))
        if self.largest_drift > LARGEST_DRIFT_NATS:
            raise PartFailed(f"log probabilities differ by up to {self.largest_drift:.3f} nats")

    def figures(self) -> Figures:
        return {
            "answers_compared": self.compared,
            "answers_equal": self.equal,
            "answers_parted_at_a_near_tie": self.near_ties,
            "largest_drift_nats": round(self.largest_drift, 5),
        }
