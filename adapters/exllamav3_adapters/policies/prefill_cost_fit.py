"""What a prefill costs on this machine, learned from the chunks that it prefills."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost

_MIN_TOKENS = 256
"""A page. What a shorter chunk takes is mostly what every forward pass takes."""
_KEPT_BY_DEPTH = 8
_MIN_SAMPLES = 8
_MIN_SPREAD = 2.0
"""Thousand tokens of depth between the first and the third quarter of the samples; the slope of less is noise."""
_MIN_SECONDS, _MAX_SECONDS = 1e-6, 3600.0


@dataclass(frozen=True, slots=True)
class FitQuality:
    samples: int
    """Chunks, or rounds of several, that were measured since the start."""
    kept: int
    """Of these, what the fit rests on."""
    relative_error: float | None
    """Median of how far a kept sample is from what the fit says, relative to that. None: nothing is measured yet."""
    measured: bool
    """False: the samples do not tell D from E, so their ratio is that of the prior."""


@dataclass(frozen=True, slots=True)
class _Sample:
    tokens: int
    depth: float
    """Mean of (p + q), in thousands of tokens."""
    rate: float
    """Seconds by thousand tokens."""


class PrefillCostFit:
    """A running fit of `PrefillCost`, in seconds, that outliers do not turn.

    A chunk from q to p that takes t seconds has the rate `t / (p - q) = D + E * (p + q)`: a straight line over depth.
    The line is Siegel's repeated median (Biometrika 1982), which stands while fewer than half of the samples are wrong:
    E is the median over samples of the median slope from each to the others, D the median of what is left. Kept are the
    latest eight samples of each octave of depth, so that memory is bounded and long prompts are not forgotten under
    short ones, and of those only what is at least half as long as most, since a short chunk pays the fixed costs of a
    forward pass for few tokens.

    With fewer than eight samples, or where all lie at one depth, D and E cannot be told apart: then they keep the ratio
    of `prior`. Neither is ever negative. Not thread-safe.
    """

    def __init__(self, prior: PrefillCost = TYPICAL) -> None:
        self._prior = prior
        self._by_octave: dict[int, list[_Sample]] = {}
        self._num_samples = 0
        self._fit: tuple[PrefillCost, FitQuality] | None = None

    def add(self, start: int, length: int, seconds: float) -> None:
        """One chunk, of `length` tokens from position `start`, took so long."""
        self.add_round([(start, length)], seconds)

    def add_round(self, chunks: Iterable[tuple[int, int]], seconds: float) -> None:
        """Chunks of several prompts, each a start and a length, took so long together.

        What can be no measurement is ignored: too few tokens, less than a microsecond, or an hour.
        """
        chunks = list(chunks)
        assert all(start >= 0 and length >= 0 for start, length in chunks), f"no chunks: {chunks}"
        tokens = sum(length for _, length in chunks)
        if tokens < _MIN_TOKENS or not _MIN_SECONDS < seconds < _MAX_SECONDS:
            return
        depth = sum(length * (2 * start + length) for start, length in chunks) / tokens / 1000
        self._keep(_Sample(tokens, depth, seconds / (tokens / 1000)))
        self._num_samples += 1
        self._fit = None

    @property
    def cost(self) -> PrefillCost:
        """In seconds. Costs some milliseconds after a new sample; without one it is the prior, which is in no unit."""
        return self._current()[0]

    @property
    def quality(self) -> FitQuality:
        return self._current()[1]

    def _keep(self, sample: _Sample) -> None:
        kept = self._by_octave.setdefault(int(sample.depth).bit_length(), [])
        if len(kept) >= _KEPT_BY_DEPTH:
            # A page's remainder must not push out the chunks that say more.
            oldest = next((index for index, other in enumerate(kept) if other.tokens <= 2 * sample.tokens), None)
            if oldest is None:
                return
            del kept[oldest]
        kept.append(sample)

    def _current(self) -> tuple[PrefillCost, FitQuality]:
        if self._fit is None:
            samples = self._comparable()
            line = _line(samples)
            cost = line or self._scaled_prior(samples)
            errors = [abs(s.rate - _rate(cost, s.depth)) / _rate(cost, s.depth) for s in samples]
            self._fit = (
                cost,
                FitQuality(
                    samples=self._num_samples,
                    kept=len(samples),
                    relative_error=median(errors) if errors else None,
                    measured=line is not None,
                ),
            )
        return self._fit

    def _comparable(self) -> list[_Sample]:
        kept = [sample for samples in self._by_octave.values() for sample in samples]
        if not kept:
            return []
        usual = sorted(sample.tokens for sample in kept)[len(kept) * 3 // 4]
        return [sample for sample in kept if sample.tokens * 2 >= usual]

    def _scaled_prior(self, samples: list[_Sample]) -> PrefillCost:
        if not samples:
            return self._prior
        scale = median(sample.rate / _rate(self._prior, sample.depth) for sample in samples)
        return PrefillCost(self._prior.linear * scale, self._prior.quadratic * scale)


def _rate(cost: PrefillCost, depth: float) -> float:
    return cost.linear + cost.quadratic * depth


def _line(samples: list[_Sample]) -> PrefillCost | None:
    if len(samples) < _MIN_SAMPLES:
        return None
    depths = sorted(sample.depth for sample in samples)
    if depths[len(depths) * 3 // 4] - depths[len(depths) // 4] < _MIN_SPREAD:
        return None
    slopes = []
    for sample in samples:
        others = [
            (other.rate - sample.rate) / (other.depth - sample.depth)
            for other in samples
            if abs(other.depth - sample.depth) >= _MIN_SPREAD / 2
        ]
        if others:
            slopes.append(median(others))
    quadratic = max(0.0, median(slopes))
    linear = median(sample.rate - quadratic * sample.depth for sample in samples)
    if linear < 0:
        return PrefillCost(0.0, median(sample.rate / sample.depth for sample in samples))
    return PrefillCost(linear, quadratic)
