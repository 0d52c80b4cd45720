"""Rates over requests, with intervals from drawing sessions again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trace_study.workload import PAGE_TOKENS, Workload

_ByRequest = NDArray[np.int64] | NDArray[np.float64]

_DRAWS = 1000
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rate or a difference of two, in percent, and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class SessionBootstrap:
    """Draws as many sessions as there are, with replacement, always the same draws for one workload and seed.

    So the difference of two policies is taken within a draw, and its interval is that of pairs.
    """

    def __init__(self, workload: Workload, seed: int = 0) -> None:
        self._workload = workload
        _, self._session_of = np.unique(workload.sessions[workload.counted], return_inverse=True)
        self._num_sessions = int(self._session_of.max()) + 1
        draw = np.random.default_rng(seed)
        self._times_drawn = np.zeros((_DRAWS, self._num_sessions))
        for times in self._times_drawn:
            times += np.bincount(draw.integers(0, self._num_sessions, self._num_sessions), minlength=self._num_sessions)

    def token_hit_rate(self, hits: NDArray[np.int64]) -> Estimate:
        """Of all prompt tokens, those served from the cache. `hits`: pages, by request."""
        return self._estimate([self._served(hits)], self._prompt_tokens())

    def first_request_hit_rate(self, hits: NDArray[np.int64]) -> Estimate:
        """Of the tokens that a cache without limit would serve to conversations' first requests, those served."""
        first = self._workload.first[self._workload.counted]
        return self._estimate([self._served(hits) * first], self._shareable() * first)

    def token_hit_difference(self, hits: NDArray[np.int64], other: NDArray[np.int64]) -> Estimate:
        return self._estimate([self._served(hits), self._served(other)], self._prompt_tokens())

    def first_request_difference(self, hits: NDArray[np.int64], other: NDArray[np.int64]) -> Estimate:
        first = self._workload.first[self._workload.counted]
        return self._estimate([self._served(hits) * first, self._served(other) * first], self._shareable() * first)

    def share(self, part: NDArray[np.float64], total: NDArray[np.float64]) -> Estimate:
        """Of one sum over requests, another. Both are by counted request; the total of a draw is 1 at least."""
        return self._estimate([part], total)

    def _served(self, hits: NDArray[np.int64]) -> NDArray[np.int64]:
        return hits[self._workload.counted] * PAGE_TOKENS

    def _prompt_tokens(self) -> NDArray[np.int64]:
        return self._workload.prompt_tokens[self._workload.counted]

    def _shareable(self) -> NDArray[np.int64]:
        return self._workload.unbounded_hits[self._workload.counted]

    def _estimate(self, served: Sequence[_ByRequest], total: _ByRequest) -> Estimate:
        """Rate of the first of `served`, less that of the second where there is one."""
        parts = [np.bincount(self._session_of, weights=part, minlength=self._num_sessions) for part in [*served, total]]
        by_session = np.stack(parts, axis=1)  # (sessions, served.. and total)
        low, high = np.percentile(_rates(self._times_drawn @ by_session), _PERCENTILES)
        return Estimate(float(_rates(by_session.sum(axis=0)[None])[0]), float(low), float(high))


def _rates(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, served.. and total) to (n,) percent. A draw without anything to serve counts as none served."""
    rates = 100 * sums[:, :-1] / np.maximum(sums[:, -1:], 1)
    return rates[:, 0] - rates[:, 1] if rates.shape[1] > 1 else rates[:, 0]
