"""What the default policy has to reach on the delivered traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trace_study.study import Outcome


@dataclass(frozen=True, slots=True)
class Requirement:
    rule: str
    value: float
    bound: float

    @property
    def met(self) -> bool:
        return self.value >= self.bound


def requirements(outcome: Outcome) -> Iterator[Requirement]:
    """Differences in points, against stock `tree`."""
    where, difference = f"{outcome.workload}, {outcome.size}", outcome.token_hit_difference.value
    yield Requirement(f"{where}: token hit rate", difference, _least_difference(outcome))
    if _is_headline(outcome):
        yield Requirement(f"{where}: first requests", outcome.first_request_difference.value, 5.0)


def _least_difference(outcome: Outcome) -> float:
    if _is_headline(outcome):
        return 1.0
    match outcome.workload, outcome.size:
        case ("Claude Code, 16 users", "8k pages") | ("Claude Code, 4 users", "2k pages" | "4k pages" | "8k pages"):
            return 0.0
        case "Mooncake conversation", _:
            return -0.2
    return -3.0


def _is_headline(outcome: Outcome) -> bool:
    return (outcome.workload, outcome.size) == ("Claude Code, 16 users", "4k pages")
