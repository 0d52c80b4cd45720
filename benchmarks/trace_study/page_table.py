"""exllamav3's own page table under a workload, without a model: what the fast orders are held against."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from trace_study.replay import Hits
from trace_study.workload import PAGE_TOKENS, Workload


def make_page_table(capacity: int) -> Any:
    """A `PageTable` of `capacity` pages. exllamav3 must be importable: see `exllamav3_adapters.cpu.install`."""
    from exllamav3.generator.pagetable import PageTable

    generator = SimpleNamespace(recurrent_cache=None, enable_defrag=True, draft_cache=None)
    cache = SimpleNamespace(
        max_num_tokens=capacity * PAGE_TOKENS, model=SimpleNamespace(loaded_tp=False), get_all_tensors=list
    )
    generator.pagetable, generator.cpu_page_cache = PageTable(generator, cache), None
    return generator.pagetable


def page_hash(page: int) -> bytes:
    """A content hash, as far as the page table can tell."""
    return hashlib.blake2b(page.to_bytes(8, "big"), digest_size=16).digest()


def compute(page_table: Any, hashes: list[bytes], previous_hashes: list[bytes | None] | None = None) -> Any:
    """Claims the pages, one chain unless told otherwise, and leaves them as a prefill does: referenced."""
    pages = page_table.allocate_pages(hashes, 0, None, set(hashes))[0]
    for page, previous in zip(pages, previous_hashes or [None, *hashes], strict=False):
        page.prev_hash = previous
        page.kv_position = PAGE_TOKENS
        page.can_revert = False
    return pages


def replay_on(page_table: Any, workload: Workload, on_request: Callable[[float], None] = lambda seconds: None) -> Hits:
    """What `replay` does, on the real thing: pages served, by request. `on_request` is told each request's time."""
    hits = np.zeros(len(workload.requests), np.int64)
    for index, request in enumerate(workload.requests):
        on_request(request.seconds)
        hashes = [page_hash(page) for page in request.chain.tolist()]
        before = page_table.metrics["alloc_cached_pages"]
        page_table.deallocate_pages(compute(page_table, hashes))
        hits[index] = page_table.metrics["alloc_cached_pages"] - before
    return hits
