"""What a prefill costs, by where it starts and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

_KILO = 1000.0
_REFERENCE_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """`D * (p - q) + E * (p * p - q * q)` from token q to token p, positions in thousands of tokens.

    A token costs the same in every layer but attention, where it also meets all the tokens before it: hence the
    square, and hence a replay of n tokens costs more the deeper they lie. Where only an order is wanted, only the ratio
    of the two matters. Raises ValueError where one is negative or not finite, or both are 0.
    """

    linear: float
    """D, by thousand tokens."""
    quadratic: float
    """E, by million."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.linear) and math.isfinite(self.quadratic)):
            raise ValueError(f"prefill cost coefficients must be finite: D is {self.linear}, E is {self.quadratic}")
        if min(self.linear, self.quadratic) < 0 or max(self.linear, self.quadratic) <= 0:
            raise ValueError(
                f"prefill cost coefficients must be 0 or more and not both 0: D is {self.linear}, E is {self.quadratic}"
            )

    def between(self, start: int, end: int) -> float:
        """Of prefilling the tokens from position `start` up to, not including, `end`."""
        first, last = start / _KILO, end / _KILO
        return (last - first) * (self.linear + self.quadratic * (last + first))

    def normalised(self) -> PrefillCost:
        """In units of a prefill of the first ten thousand tokens. Costs that differ by a factor alone become equal."""
        unit = self.between(0, _REFERENCE_TOKENS)
        return PrefillCost(self.linear / unit, self.quadratic / unit)


TYPICAL = PrefillCost(linear=1.0, quadratic=1 / 61)
"""Of Qwen3-Next-80B-A3B by operations, for want of a measurement: 3e9 active parameters make 6e9 a token; 12 attention
layers, 16 heads of 256, make 4 * 12 * 4096 a token and position before it. Both are equal for a prefill of 61,000."""
