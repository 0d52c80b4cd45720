"""Decaying credit of pages, by the chain at once: what `AgingCredit` computes by the page.

Log credit is `log2(sum(2 ** (t_i / half_life)))`, so that it does not change between two credits.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trace_study.leaf_first import Chain
from trace_study.workload import Workload

_NOT_KNOWN, _END = -1, -2


class Credit(Protocol):
    log_credit: NDArray[np.float64]
    """By page; -inf: none."""

    def claim(self, index: int, chain: Chain, num_cached: int) -> None: ...


class _Aging:
    def __init__(self, workload: Workload, *, half_life: float, pages: int = 0, weight: float = 0.0) -> None:
        """`half_life` in seconds; at most the first `pages` pages are credited, up to `weight`; 0: no bound."""
        self.log_credit = np.full(workload.num_pages, -np.inf)
        self._requests = workload.requests
        self._half_life = half_life
        self._pages = pages or workload.num_pages
        self._log_cap = np.log2(weight) if weight else np.inf

    def now(self, index: int) -> float:
        return self._requests[index].seconds / self._half_life

    def _credit(self, chain: Chain, index: int) -> None:
        now = self.now(index)
        self.log_credit[chain] = np.minimum(np.logaddexp2(self.log_credit[chain], now), now + self._log_cap)


class HitCredit(_Aging):
    """Every hit of a page counts."""

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self._credit(chain[: min(num_cached, self._pages)], index)


class SharedHeadCredit(_Aging):
    """A page counts when a prompt goes on after it otherwise than the last one did: `AgingCredit`'s rule."""

    def __init__(self, workload: Workload, *, half_life: float, pages: int = 0, weight: float = 0.0) -> None:
        super().__init__(workload, half_life=half_life, pages=pages, weight=weight)
        self._continuations = np.full(workload.num_pages, _NOT_KNOWN, np.int32)

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        pages = chain[: self._pages]
        following = np.append(chain[1:], _END)[: len(pages)].astype(np.int32)
        known = self._continuations[pages]
        other = (known != _NOT_KNOWN) & (known != _END) & (known != following)
        parted = np.flatnonzero(other | ((known == _END) & (following == _END)))
        if len(parted):
            self._credit(pages[: parted[-1] + 1], index)
        self._continuations[pages] = following


class AgingLfu(_Aging):
    """Worth of a page by its claims, the first one included; pages past the cap are worth one claim, the last one."""

    @property
    def worth(self) -> NDArray[np.float64]:
        return self.log_credit

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self._credit(chain[: self._pages], index)
        self.log_credit[chain[self._pages :]] = self.now(index)


class CreditedRecency:
    """Worth of a page by its last claim, and on top of that its credit: a head outlives its recency by
    `half_life * log2(1 + weight)`."""

    def __init__(self, workload: Workload, credit: SharedHeadCredit) -> None:
        self.worth = np.zeros(workload.num_pages)
        self._credit = credit

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self._credit.claim(index, chain, num_cached)
        self.worth[chain] = np.logaddexp2(self._credit.log_credit[chain], self._credit.now(index))


class CreditAmongEquals:
    """Worth of a page by the `seconds` long class of its last claim; credit decides within a class."""

    def __init__(self, workload: Workload, credit: SharedHeadCredit, *, seconds: float) -> None:
        self.worth = np.zeros(workload.num_pages)
        self._requests = workload.requests
        self._credit = credit
        self._seconds = seconds

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self._credit.claim(index, chain, num_cached)
        weights = np.exp2(self._credit.log_credit[chain] - self._credit.now(index))
        self.worth[chain] = self._requests[index].seconds // self._seconds + weights / (1 + weights)
