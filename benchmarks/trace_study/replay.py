"""A cache of pages under one workload: the fast equivalent of exllamav3's page table.

Requests run one after another; a request claims the pages of its chain, evicts for those that are missing, and leaves
all of them behind. Pages that answers fill are not modelled. A page counts as served where it and all before it were in
the cache, which is what the engine can resume from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trace_study.workload import Workload

Hits = NDArray[np.int64]
"""By request: pages served from the cache."""


class Order(Protocol):
    """Which pages go first. It sees each request twice, and hands out pages between the two."""

    def claim(self, index: int, chain: NDArray[np.int32], num_cached: int) -> None:
        """Request number `index` takes `chain`, whose first `num_cached` pages are in the cache."""

    def evict(self) -> int:
        """A page that is in the cache and not in the chain just claimed; it is out of it from now on."""

    def release(self, chain: NDArray[np.int32]) -> None:
        """The request is done: all of its chain is in the cache and may be evicted."""


def replay(
    workload: Workload,
    capacity: int,
    order: Order,
    on_request: Callable[[], None] = lambda: None,
) -> Hits:
    """Raises ValueError where a request needs more than `capacity` pages."""
    resident = np.zeros(workload.num_pages, np.bool_)
    hits = np.zeros(len(workload.requests), np.int64)
    free = capacity
    for index, request in enumerate(workload.requests):
        chain = request.chain
        if len(chain) > capacity:
            raise ValueError(f"request {index} of {workload.name} needs {len(chain)} pages of {capacity}")
        found = resident[chain]
        num_found = int(found.sum())
        num_cached = num_found if num_found == len(chain) else int(np.argmin(found))
        hits[index] = num_cached
        order.claim(index, chain, num_cached)
        missing = len(chain) - num_found
        for _ in range(max(0, missing - free)):
            resident[order.evict()] = False
        free = max(0, free - missing)
        resident[chain] = True
        order.release(chain)
        on_request()
    return hits
