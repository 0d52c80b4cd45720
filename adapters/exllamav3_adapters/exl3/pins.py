"""Pages that eviction spares."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from exllamav3.constants import PAGE_SIZE

from exllamav3_adapters.exl3.aging_pagetable import AgingPageTable
from exllamav3_adapters.exl3.page_chain import page_hashes, tail_pages


class PinnedPages:
    """Pinned pages come last in the page table's eviction order, after everything else that is unreferenced.

    They are not held by a reference: a request that needs the whole cache may still take them, or it would wait for
    ever. While others run it waits (`num_withheld`). At most `limit_pages` are pinned. The stock order is sorted again;
    an `AgingPageTable` is told instead. Runs on the scheduler's thread.
    """

    def __init__(self, pagetable: Any, limit_pages: int) -> None:
        self._pagetable = pagetable
        self._limit_pages = limit_pages
        self._owners: dict[bytes, set[tuple[int, ...]]] = {}  # page hash -> the pinned prompts it belongs to
        self._is_told = isinstance(pagetable, AgingPageTable)
        if not self._is_told:
            self._stock_order = pagetable.build_eviction_order
            pagetable.build_eviction_order = self._order

    def pin(self, token_ids: tuple[int, ...]) -> int:
        """Pins the pages that hold the prompt now, up to the limit. Returns the tokens protected."""
        hashes = page_hashes(token_ids)
        pages = [self._pagetable.get_live_page(phash) for phash in hashes]
        tail = tail_pages(self._pagetable, token_ids, hashes)
        pinned_tokens = 0
        for page in [*pages, *tail[:1]]:
            if page is None or not self._claim(page.phash, token_ids):
                break
            pinned_tokens += PAGE_SIZE
        return min(pinned_tokens, len(token_ids))

    def unpin(self, token_ids: tuple[int, ...]) -> None:
        for phash in [phash for phash, owners in self._owners.items() if token_ids in owners]:
            owners = self._owners[phash]
            owners.discard(token_ids)
            if not owners:
                del self._owners[phash]
                if self._is_told:
                    self._pagetable.set_pinned(phash, False)

    def pinned_pages(self) -> int:
        """Pinned pages that are in the cache now."""
        pages = (self._pagetable.unreferenced_pages, self._pagetable.referenced_pages)
        return sum(any(phash in table for table in pages) for phash in self._owners)

    def num_withheld(self, own_hashes: Collection[bytes]) -> int:
        """How many unreferenced pages a request with pages of these hashes must leave alone now: all pinned ones of
        others, for as long as any request runs that will give pages back."""
        if not self._pagetable.referenced_pages:
            return 0
        unreferenced = self._pagetable.unreferenced_pages
        return sum(phash in unreferenced and phash not in own_hashes for phash in self._owners)

    def _claim(self, phash: bytes, token_ids: tuple[int, ...]) -> bool:
        if phash not in self._owners and len(self._owners) >= self._limit_pages:
            return False
        if phash not in self._owners:
            self._owners[phash] = set()
            if self._is_told:
                self._pagetable.set_pinned(phash, True)
        self._owners[phash].add(token_ids)
        return True

    def _order(self, protected_hashes: set[bytes] | None = None) -> deque[Any]:
        order: deque[Any] = self._stock_order(protected_hashes)
        if not self._owners:
            return order
        protected = protected_hashes or ()
        # Behind pinned pages come only those that the allocation in progress is itself about to claim.
        free = [page for page in order if page.phash not in self._owners and page.phash not in protected]
        pinned = [page for page in order if page.phash in self._owners and page.phash not in protected]
        claimed = [page for page in order if page.phash in protected]
        return deque([*free, *pinned, *claimed])
