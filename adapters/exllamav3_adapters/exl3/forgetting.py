"""Dropping what the cache holds of a prompt, from every tier."""

from __future__ import annotations

from typing import Any

import torch

from exllamav3_adapters.exl3.aging_policy import AgingPolicy
from exllamav3_adapters.exl3.checkpoint_cache import CheckpointCache
from exllamav3_adapters.exl3.page_chain import as_tensor, page_hashes, tail_pages


class Forgetting:
    """Drops the pages of a prompt and all that follow them. Runs on the scheduler's thread.

    A page that a running request holds cannot go yet; its hash is remembered, and `sweep` drops it once the request
    has ended. Descendants go too: a page is only reachable through its ancestors, and the page in which the prompt
    ends also holds the text that followed it.
    """

    def __init__(self, generator: Any, aging: AgingPolicy | None = None) -> None:
        self._generator = generator
        self._aging = aging
        cache = generator.recurrent_cache
        self._checkpoints = cache if isinstance(cache, CheckpointCache) else None
        self._waiting: set[tuple[int, ...]] = set()

    def forget(self, token_ids: tuple[int, ...]) -> int:
        """Returns the number of pages dropped now, over all tiers."""
        hashes = page_hashes(token_ids)
        doomed = set(hashes) | {page.phash for page in tail_pages(self._generator.pagetable, token_ids, hashes)}
        doomed |= self._tails_in_tiers(token_ids, hashes)
        doomed |= self._frontiers(token_ids, hashes)
        self._add_descendants(doomed)
        if self._aging is not None:
            self._aging.forget(token_ids, doomed)
        dropped, held = self._drop_live(doomed)
        dropped += self._drop_sysmem(doomed) + self._drop_disk(doomed)
        if self._checkpoints is not None:
            self._checkpoints.forget(doomed)
        if held:
            self._waiting.add(token_ids)
        else:
            self._waiting.discard(token_ids)
        self._generator._cache_stats_memo = (None, None)  # its signature does not see a page that was cleared
        return dropped

    def sweep(self) -> None:
        """After a request ended: drop what it had held."""
        for token_ids in list(self._waiting):
            self.forget(token_ids)

    def _tails_in_tiers(self, token_ids: tuple[int, ...], hashes: list[bytes]) -> set[bytes]:
        """Full pages that begin with a prompt shorter than a page. Those of a longer one descend from its hashes."""
        tail = as_tensor(token_ids)[0]
        if hashes or not len(tail):
            return set()
        found: set[bytes] = set()
        if (tier := self._generator.cpu_page_cache) is not None:
            for phash, entry in tier.entries.items():
                tokens = entry["tokens"]  # shape (1, 256), but (256,) of a page that came back from disk
                if entry["prev_hash"] is None and tokens is not None and _begins(tokens.flatten(), tail):
                    found.add(phash)
        if (disk := self._generator.disk_page_cache) is not None:
            for phash in [phash for phash, meta in disk.pages.items() if meta["prev_hash"] is None]:
                read = disk._read_tokens(phash)
                if read is not None and _begins(read[1], tail):
                    found.add(phash)
        return found

    def _frontiers(self, token_ids: tuple[int, ...], hashes: list[bytes]) -> set[bytes]:
        """Checkpoints inside the prompt's pages. Those after it descend from its hashes."""
        if self._checkpoints is None:
            return set()
        return {frontier.key for _, frontier in self._checkpoints.prefixes(hashes, as_tensor(token_ids))}

    def _add_descendants(self, doomed: set[bytes]) -> None:
        children: dict[bytes, list[bytes]] = {}
        for phash, parent in self._links():
            if parent is not None:
                children.setdefault(parent, []).append(phash)
        stack = list(doomed)
        while stack:
            for child in children.get(stack.pop(), ()):
                if child not in doomed:
                    doomed.add(child)
                    stack.append(child)

    def _links(self) -> list[tuple[bytes, bytes | None]]:
        """(hash, parent's hash) of every page in every tier."""
        links = [(page.phash, page.prev_hash) for page in self._generator.pagetable.all_pages]
        if (tier := self._generator.cpu_page_cache) is not None:
            links += [(phash, entry["prev_hash"]) for phash, entry in tier.entries.items()]
        if (disk := self._generator.disk_page_cache) is not None:
            with disk._lock:
                links += [(phash, meta["prev_hash"]) for phash, meta in disk.pages.items()]
        return links

    def _drop_live(self, doomed: set[bytes]) -> tuple[int, bool]:
        pagetable = self._generator.pagetable
        dropped = 0
        for phash in doomed:
            if (page := pagetable.unreferenced_pages.get(phash)) is not None and page.kv_position:
                page.clear()
                dropped += 1
        return dropped, any(phash in pagetable.referenced_pages for phash in doomed)

    def _drop_sysmem(self, doomed: set[bytes]) -> int:
        tier = self._generator.cpu_page_cache
        if tier is None:
            return 0
        found = [phash for phash in doomed if phash in tier.entries]
        if found and self._generator.disk_page_cache is not None:
            self._generator.disk_page_cache.flush()  # a slot that is still being written must not be reused
        for phash in found:
            entry = tier.entries.pop(phash)
            if entry["pending"] is not None:
                entry["pending"].wait()
            if tier.segments:
                tier.slab_view(entry["slot"]).zero_()
            tier.free_slots.append(entry["slot"])
        return len(found)

    def _drop_disk(self, doomed: set[bytes]) -> int:
        disk = self._generator.disk_page_cache
        if disk is None:
            return 0
        disk.flush()
        dropped = 0
        with disk._lock:
            for kind, table in (("page", disk.pages), ("state", disk.states)):
                for phash in doomed & set(table):
                    disk._drop(kind, phash)
                    dropped += kind == "page"
        disk.flush()  # the files are gone when this returns
        return dropped


def _begins(tokens: torch.Tensor, start: torch.Tensor) -> bool:
    return torch.equal(tokens[: len(start)], start)
