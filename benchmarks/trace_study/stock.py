"""The two orders that exllamav3 1.6.5 has."""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict

import numpy as np

from trace_study.leaf_first import Chain
from trace_study.workload import Workload


class Lru:
    """`lru`: the page claimed longest ago, wherever it is in its chain."""

    def __init__(self, workload: Workload) -> None:
        self._pages: OrderedDict[int, None] = OrderedDict()

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        for page in chain.tolist():
            self._pages.pop(page, None)

    def evict(self) -> int:
        return self._pages.popitem(last=False)[0]

    def release(self, chain: Chain) -> None:
        self._pages.update(dict.fromkeys(chain.tolist()))


class Tree:
    """`tree`: whole trees, the one whose first page was claimed longest ago, each from its leaves, oldest first."""

    def __init__(self, workload: Workload) -> None:
        self._parents = workload.parents
        self._roots = workload.roots
        self._children = np.zeros(workload.num_pages, np.int32)
        self._serials = np.zeros(workload.num_pages, np.int64)
        self._resident = np.zeros(workload.num_pages, np.uint8)
        self._serial = 0
        self._leaves: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # by root
        self._trees: list[tuple[int, int]] = []
        self._claimed = -1
        self._parent_of, self._children_of = self._parents.data, self._children.data
        self._serial_of, self._is_resident = self._serials.data, self._resident.data

    def claim(self, index: int, chain: Chain, num_cached: int) -> None:
        self._serials[chain] = np.arange(self._serial + 1, self._serial + 1 + len(chain))
        self._serial += len(chain)
        self._claimed = int(chain[num_cached - 1]) if num_cached else -1
        if num_cached:
            heapq.heappush(self._trees, (int(self._serials[chain[0]]), int(chain[0])))

    def evict(self) -> int:
        while True:
            serial, root = self._trees[0]
            if serial == self._serial_of[root] and (page := self._oldest_leaf(root)) is not None:
                return page
            heapq.heappop(self._trees)

    def release(self, chain: Chain) -> None:
        if not len(chain):
            return
        new = chain[self._resident[chain] == 0]
        self._resident[new] = 1
        parents = self._parents[new]
        self._children[parents[parents >= 0]] += 1
        root = int(chain[0])
        heapq.heappush(self._trees, (self._serial_of[root], root))
        if not self._children_of[chain[-1]]:
            self._push(int(chain[-1]))

    def _oldest_leaf(self, root: int) -> int | None:
        leaves = self._leaves[root]
        while leaves:
            serial, page = heapq.heappop(leaves)
            if not self._is_resident[page] or serial != self._serial_of[page] or self._children_of[page]:
                continue
            self._is_resident[page] = 0
            parent = self._parent_of[page]
            if parent >= 0:
                self._children_of[parent] -= 1
                if not self._children_of[parent] and parent != self._claimed:
                    self._push(parent)
            return page
        return None

    def _push(self, page: int) -> None:
        heapq.heappush(self._leaves[int(self._roots[page])], (self._serial_of[page], page))
