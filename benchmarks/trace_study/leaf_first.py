"""Orders that take a chain of pages from its end."""

from __future__ import annotations

import heapq
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trace_study.workload import Workload

Chain = NDArray[np.int32]


class Worth(Protocol):
    """What pages are worth, by page. Only a claim changes it, and only for the pages of the chain claimed."""

    @property
    def worth(self) -> NDArray[np.float64]: ...

    def claim(self, index: int, chain: Chain, num_cached: int) -> None: ...


class LeafFirst:
    """The least worth of all leaves goes first; among equals, the one claimed longest ago."""

    def __init__(self, workload: Workload, worth: Worth) -> None:
        self._worth = worth
        self._parents = workload.parents
        self._children = np.zeros(workload.num_pages, np.int32)  # in the cache
        self._serials = np.zeros(workload.num_pages, np.int64)
        self._resident = np.zeros(workload.num_pages, np.uint8)
        self._serial = 0
        self._heap: list[tuple[float, int, int]] = []
        self._claimed = -1  # last page of the chain in use that was in the cache: the only one that could be a leaf
        # A buffer reads a single element several times faster than its array.
        self._parent_of, self._children_of = self._parents.data, self._children.data
        self._serial_of, self._is_resident = self._serials.data, self._resident.data
        self._worth_of = worth.worth.data

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self._serials[chain] = np.arange(self._serial + 1, self._serial + 1 + len(chain))
        self._serial += len(chain)
        self._worth.claim(index, chain, num_cached)
        self._claimed = int(chain[num_cached - 1]) if num_cached else -1

    def evict(self) -> int:
        while True:
            _, serial, page = heapq.heappop(self._heap)
            if self._is_resident[page] and serial == self._serial_of[page] and not self._children_of[page]:
                break
        self._is_resident[page] = 0
        parent = self._parent_of[page]
        if parent >= 0:
            self._children_of[parent] -= 1
            if not self._children_of[parent] and parent != self._claimed:
                self._push(parent)
        return page

    def release(self, chain: Chain) -> None:
        new = chain[self._resident[chain] == 0]
        self._resident[new] = 1
        parents = self._parents[new]
        self._children[parents[parents >= 0]] += 1
        if len(chain) and not self._children_of[chain[-1]]:
            self._push(int(chain[-1]))

    def _push(self, page: int) -> None:
        heapq.heappush(self._heap, (self._worth_of[page], self._serial_of[page], page))


class Recency:
    """Worth nothing: leaf-LRU."""

    def __init__(self, workload: Workload) -> None:
        self.worth = np.zeros(workload.num_pages)

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        pass


class NextUse:
    """Worth the more the sooner it is asked for again: what no real order can know."""

    def __init__(self, workload: Workload) -> None:
        self.worth = np.zeros(workload.num_pages)
        next_use = np.full(workload.num_pages, np.inf)
        self._next: list[NDArray[np.float64]] = []
        for request in reversed(workload.requests):
            self._next.append(next_use[request.chain])
            next_use[request.chain] = len(workload.requests) - len(self._next)
        self._next.reverse()

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self.worth[chain] = -self._next[index]
