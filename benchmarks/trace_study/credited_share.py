"""Leaf-LRU with a share of the cache for credit: the fast equivalent of `LeafOrder`."""

from __future__ import annotations

import heapq

import numpy as np

from trace_study.credit import Credit
from trace_study.leaf_first import Chain
from trace_study.workload import Workload


class CreditedShare:
    """A leaf whose turn by recency has come is parked, if it has credit and there is room for it or for less."""

    def __init__(self, workload: Workload, credit: Credit, *, credited_pages: int) -> None:
        num_pages = workload.num_pages
        self._credit = credit
        self._credited_pages = credited_pages
        self._num_parked = 0
        self._serial = 0
        self._claimed = -1
        self._leaves: list[tuple[int, int]] = []  # serial, page
        self._parked_leaves: list[tuple[float, int, int]] = []  # log credit, serial, page
        self._parents = workload.parents
        self._serials = np.zeros(num_pages, np.int64)
        self._resident = np.zeros(num_pages, np.uint8)
        self._parked = np.zeros(num_pages, np.uint8)
        self._children = np.zeros(num_pages, np.int32)  # in the cache
        self._blocking = np.zeros(num_pages, np.int32)  # of them, those that are not parked
        self._parent_of, self._serial_of = self._parents.data, self._serials.data
        self._is_resident, self._is_parked = self._resident.data, self._parked.data
        self._children_of, self._blocking_of = self._children.data, self._blocking.data
        self._credit_of = credit.log_credit.data

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self._serials[chain] = np.arange(self._serial + 1, self._serial + 1 + len(chain))
        self._serial += len(chain)
        self._credit.claim(index, chain, num_cached)
        self._claimed = int(chain[num_cached - 1]) if num_cached else -1
        cached = chain[:num_cached]
        parked = cached[self._parked[cached] != 0]
        self._parked[parked] = 0
        self._num_parked -= len(parked)
        parents = self._parents[parked]
        self._blocking[parents[parents >= 0]] += 1

    def evict(self) -> int:
        while self._leaves:
            serial, page = self._leaves[0]
            if self._is_leaf(page) and serial == self._serial_of[page]:
                if not self._park(page):
                    return self._drop(page)
                if self._num_parked > self._credited_pages and self._least_parked() is not None:
                    return self._drop(self._parked_leaves[0][2])
            else:
                heapq.heappop(self._leaves)
        assert self._least_parked() is not None, "the chain in use is not the whole cache"
        return self._drop(self._parked_leaves[0][2])

    def release(self, chain: Chain) -> None:
        new = chain[self._resident[chain] == 0]
        self._resident[new] = 1
        parents = self._parents[new]
        parents = parents[parents >= 0]
        self._children[parents] += 1
        self._blocking[parents] += 1
        if len(chain) and not self._blocking_of[chain[-1]]:
            self._offer(int(chain[-1]))

    def _is_leaf(self, page: int) -> bool:
        return bool(self._is_resident[page] and not self._is_parked[page] and not self._blocking_of[page])

    def _park(self, page: int) -> bool:
        if not self._children_of[page]:
            credit = self._kept_credit(page)
            if credit == -np.inf or not self._credited_pages:
                return False
            if self._num_parked >= self._credited_pages:
                least = self._least_parked()
                if least is None or least >= credit:
                    return False
            heapq.heappush(self._parked_leaves, (credit, self._serial_of[page], page))
        heapq.heappop(self._leaves)
        self._is_parked[page] = 1
        self._num_parked += 1
        self._unblock(self._parent_of[page])
        return True

    def _kept_credit(self, page: int) -> float:
        """Its own, or that of the page before it, for one page of those that come after it."""
        credit, parent = self._credit_of[page], self._parent_of[page]
        if credit == -np.inf and parent >= 0 and self._children_of[parent] == self._blocking_of[parent]:
            credit = self._credit_of[parent]
        return float(credit)

    def _least_parked(self) -> float | None:
        while self._parked_leaves:
            credit, serial, page = self._parked_leaves[0]
            if self._is_parked[page] and serial == self._serial_of[page] and not self._children_of[page]:
                return credit
            heapq.heappop(self._parked_leaves)
        return None

    def _drop(self, page: int) -> int:
        parent = self._parent_of[page]
        self._is_resident[page] = 0
        if parent >= 0:
            self._children_of[parent] -= 1
        if self._is_parked[page]:
            self._is_parked[page] = 0
            self._num_parked -= 1
            if parent >= 0 and self._is_parked[parent] and not self._children_of[parent]:
                heapq.heappush(self._parked_leaves, (self._credit_of[parent], self._serial_of[parent], parent))
        else:
            self._unblock(parent)
        return page

    def _unblock(self, parent: int) -> None:
        if parent >= 0:
            self._blocking_of[parent] -= 1
            if not self._blocking_of[parent] and parent != self._claimed:
                self._offer(parent)

    def _offer(self, page: int) -> None:
        heapq.heappush(self._leaves, (self._serial_of[page], page))
