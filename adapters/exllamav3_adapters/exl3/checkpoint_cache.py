"""exllamav3's cache of recurrent checkpoints, with checkpoints at any position and another order of eviction.

exllamav3 1.6.5 keeps a state under the hash of the page that it follows, so only where a page ends. A frontier
checkpoint lies inside a page. Its key is the hash of the page's first tokens, chained like a full page's, and the
partial page itself is an entry of the system-memory tier under that key, whose parent is the last full page. So
`PageTable.is_resumable`, the pruning of stranded checkpoints and the disk tier follow it as they follow a page.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from exllamav3.cache.recurrent import RecurrentCache
from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.pagetable import is_content_hash, tensor_hash_checksum

from exllamav3_adapters.exl3.checkpoint_eviction import CheckpointEviction
from exllamav3_adapters.exl3.checkpoint_places import CheckpointPlaces
from exllamav3_adapters.exl3.device_faults import Reach, device_fault, release_memory
from exllamav3_adapters.exl3.frontier_index import Frontier, FrontierIndex
from exllamav3_adapters.exl3.page_chain import as_tensor
from exllamav3_adapters.exl3.page_chain import page_hashes as hashes_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartialPage:
    """The first tokens of a page, with what `CPUPageCache.store` reads of a page: it copies the whole page at
    `page_index`, of which only the rows of `sequence` mean something."""

    phash: bytes
    prev_hash: bytes | None
    page_index: int
    sequence: torch.Tensor
    persistable: bool


class CheckpointCache(RecurrentCache):  # type: ignore[misc]
    """A `RecurrentCache` that `install_checkpoints` has changed. All of it runs on the scheduler's thread."""

    keeps_frontiers: bool
    """The option. Without a system-memory tier it is carried out where pages end, and nowhere else."""
    frontiers: FrontierIndex
    eviction: CheckpointEviction | None
    """None: exllamav3's own order, the least recently used first."""
    hits: Counter[str]
    """Requests that resumed, by the kind of checkpoint: `frontier` or `page`."""
    num_tokens_resumed: int
    num_tokens_replayed: int
    """Tokens whose keys and values were there, and that were computed again for want of a checkpoint."""
    num_forgotten: int
    num_without_memory: int
    is_tensor_parallel: bool
    _tier: Any
    _target: Frontier | None
    _places: CheckpointPlaces

    def adopt(
        self,
        tier: Any,
        *,
        keeps_frontiers: bool,
        eviction: CheckpointEviction | None,
        is_tensor_parallel: bool = False,
    ) -> None:
        self.is_tensor_parallel = is_tensor_parallel
        self.num_without_memory = 0
        self.keeps_frontiers = keeps_frontiers
        self.frontiers = FrontierIndex()
        self.eviction = eviction
        self._places = CheckpointPlaces(self.pagetable, self.frontiers)
        self.hits = Counter()
        self.num_tokens_resumed = self.num_tokens_replayed = self.num_forgotten = 0
        self._tier = tier if keeps_frontiers else None
        self._target = None
        if self._tier is not None and self.disk_tier is not None:
            self._adopt_from_disk()

    @property
    def reaches_into_pages(self) -> bool:
        return self._tier is not None

    def keep_at_page(self, phash: bytes, state: Any) -> None:
        """`state` is a `PairedState`, or the stash of one, at the end of this page."""
        if is_content_hash(phash):
            self._keep(phash, state, persist=True)
            self._use(phash)
        else:
            self.discard(state)

    def keep_in_page(self, page: Any, anchor: bytes | None, tokens: torch.Tensor, state: Any) -> None:
        """`state` is a `PairedState`, or the stash of one, after `tokens` (1, n), the first of `page`."""
        if self._tier is None or (anchor is not None and not is_content_hash(anchor)):
            self.discard(state)
            return
        key = tensor_hash_checksum(tokens.contiguous(), anchor)
        self._keep(key, state, persist=page.persistable)
        if key not in self:
            return
        sequence = torch.zeros(1, PAGE_SIZE, dtype=torch.long)
        sequence[:, : tokens.shape[1]] = tokens
        partial = PartialPage(key, anchor, page.page_index, sequence, page.persistable)
        self._tier.store(partial, self.pagetable.access_serial, {anchor} if anchor is not None else None)
        self.frontiers.add(Frontier(key, anchor, tokens.shape[1]))
        self._use(key)

    def discard(self, state: Any) -> None:
        """Gives a stash's buffers back. A live state stays its job's."""
        if isinstance(state, dict):
            self._release(state)

    def holds_page(self, phash: bytes) -> bool:
        """In a tier behind the cache itself."""
        tier = self.pagetable.cpu_tier
        return tier is not None and (phash in tier or (tier.disk_tier is not None and tier.disk_tier.has_page(phash)))

    def find(self, page_hashes: Sequence[bytes], token_ids: torch.Tensor) -> list[tuple[int, Frontier]]:
        """(position, frontier) of each that `token_ids` (1, n) extend by a token at least, deepest first. Those whose
        state or pages are gone are left out."""
        return [
            (position, frontier)
            for position, frontier in self.prefixes(page_hashes, token_ids[:, :-1])
            if self.has(frontier.key) and self.pagetable.is_resumable(frontier.key)
        ]

    def prefixes(self, page_hashes: Sequence[bytes], token_ids: torch.Tensor) -> Iterator[tuple[int, Frontier]]:
        """(position, frontier) of each whose tokens `token_ids` (1, n) begin with, deepest first."""
        anchors: list[bytes | None] = [None, *page_hashes]
        for num_pages in range(len(page_hashes), -1, -1):
            anchor, start = anchors[num_pages], num_pages * PAGE_SIZE
            for num_tokens in self.frontiers.lengths(anchor):
                tokens = token_ids[:, start : start + num_tokens]
                if tokens.shape[1] == num_tokens:
                    frontier = Frontier(tensor_hash_checksum(tokens.contiguous(), anchor), anchor, num_tokens)
                    if frontier.key in self.frontiers:
                        yield start + num_tokens, frontier

    def fetch_partial(self, frontier: Frontier, page: Any) -> bool:
        """Copies the keys and values of a frontier's partial page into `page`, which becomes its own to fill up. False
        where they are gone."""
        serial = self.pagetable.access_serial
        entry = None
        if frontier.key in self._tier or self._tier.promote(frontier.key, serial) is not None:
            entry = self._tier.fetch(frontier.key, page.page_index, serial)
        if entry is None:
            return False
        page.sequence[:, : frontier.num_tokens] = entry["tokens"].view(1, -1)[:, : frontier.num_tokens]
        page.prev_hash = frontier.anchor
        page.kv_position = frontier.num_tokens
        page.can_revert = False
        return True

    @contextmanager
    def claiming(self, target: Frontier | None) -> Iterator[None]:
        """Meanwhile pages are allocated for a job that will resume at `target`."""
        self._target = target
        try:
            yield
        finally:
            self._target = None

    def claim(
        self, num_pages_restored: int | None, protected: set[bytes] | None, page_hashes: Sequence[bytes]
    ) -> tuple[int | None, set[bytes] | None]:
        """What an allocation for the target needs: exllamav3 restores pages up to the last checkpoint at the end of a
        page and no further, and may push the partial page out of the tier for pages that make room."""
        if self._target is None:
            return num_pages_restored, protected
        anchor = self._target.anchor
        needed = 0 if anchor is None else page_hashes.index(anchor) + 1
        return max(num_pages_restored or 0, needed), {*(protected or ()), self._target.key}

    @contextmanager
    def timing(self, sequence: Any) -> Iterator[None]:
        """Meanwhile a chunk of the sequence is prefilled, and nothing else."""
        times = self.eviction.times if self.eviction is not None else None
        if times is None:
            yield
            return
        start, began = sequence.kv_position, times.now()
        yield
        times.add(start, sequence.kv_position - start, times.now() - began)

    def pin(self, token_ids: tuple[int, ...], num_tokens: int) -> None:
        """The pages of the first `num_tokens` of a prefix are pinned: its deepest checkpoint on them goes last."""
        if self.eviction is None:
            return
        hashes, tokens = hashes_of(token_ids[:num_tokens]), as_tensor(token_ids[:num_tokens])
        inside = {position: frontier.key for position, frontier in self.prefixes(hashes, tokens)}
        positions = inside | {PAGE_SIZE * index: phash for index, phash in enumerate(hashes, start=1)}
        kept = [position for position, key in positions.items() if key in self]
        if kept:
            self.eviction.pin(token_ids, positions[max(kept)])

    def unpin(self, token_ids: tuple[int, ...]) -> None:
        if self.eviction is not None:
            self.eviction.unpin(token_ids)

    # --- what exllamav3 calls, told to the order of eviction ---------------------------------------------------

    def get_stashed(self, key: bytes, default: Any = None) -> Any:
        stashed = super().get_stashed(key, default)
        self._use(key)
        return stashed

    def put(self, key: bytes, state: Any) -> None:
        super().put(key, state)
        self._use(key)

    def rekey(self, old_key: bytes, new_key: bytes) -> None:
        moves = old_key in self and new_key not in self
        if moves and self.eviction is not None and old_key in self.eviction:
            self.eviction.rekey(old_key, new_key)
        places = self._places.up_to(old_key)[:-1] if moves else []  # the page itself is renamed after this
        super().rekey(old_key, new_key)
        if moves:
            self._use(new_key, [*places, new_key])

    def pop(self, key: bytes, *default: Any) -> Any:
        if self.eviction is not None and key in self.eviction:
            self.eviction.remove(key)
        return super().pop(key, *default)

    def popitem(self, last: bool = True) -> tuple[bytes, Any]:
        """How `RecurrentCache._insert` takes the checkpoint that goes for a new one, with `last=False`."""
        victim = self.eviction.victim(self) if self.eviction is not None and not last else None
        if victim is not None:
            assert self.eviction is not None
            self.eviction.evict(victim)
            self.move_to_end(victim, last=False)
        popped: tuple[bytes, Any] = super().popitem(last)
        return popped

    def prune_stranded(self) -> int:
        pruned: int = super().prune_stranded()
        self._drop_left_partials()
        return pruned

    def forget(self, keys: set[bytes]) -> None:
        """Drops the checkpoints under these page hashes and frontier keys from memory."""
        for key in keys & set(self):
            self._release(self.pop(key))
            self.num_forgotten += 1
        self.update_total_size()
        self._drop_left_partials()

    def counters(self) -> Mapping[str, float]:
        stranded = self.metrics["stash_evictions_stranded"]
        return {
            "checkpoints": len(self),
            "checkpoints_in_pages": sum(frontier.key in self for frontier in self.frontiers),
            "checkpoint_bytes": self.update_total_size(),
            "checkpoint_hits_page": self.hits["page"],
            "checkpoint_hits_frontier": self.hits["frontier"],
            "tokens_resumed": self.num_tokens_resumed,
            "tokens_replayed": self.num_tokens_replayed,
            "checkpoint_evictions_room": self.metrics["stash_evictions"] - stranded,
            "checkpoint_evictions_stranded": stranded + self.metrics["stash_pruned"],
            "checkpoint_evictions_forgotten": self.num_forgotten,
            "checkpoints_without_memory": self.num_without_memory,
            **(self.eviction.counters() if self.eviction is not None else {}),
        }

    def _use(self, key: bytes, places: Sequence[bytes] | None = None) -> None:
        """A checkpoint has come, or is resumed from. `places` where the page table does not know them yet."""
        if self.eviction is None or key not in self:
            return
        if places is None:  # a page that has no final hash yet may have no parent either
            places = self._places.up_to(key) if is_content_hash(key) else ()
        self.eviction.use(key, position=self[key]["position"], size=self[key]["checkpoint_size"], places=places)

    def _keep(self, key: bytes, state: Any, *, persist: bool) -> None:
        if key in self:
            self.move_to_end(key)
            self.discard(state)
        elif isinstance(state, dict):
            self._insert(key, state, persist)
            if key not in self:  # larger than the whole cache
                self.discard(state)
        else:
            self._insert(key, None, persist, state)

    def _insert(self, key: bytes, stashed: Any, persist: bool, state: Any = None) -> None:
        try:
            super()._insert(key, stashed, persist, state)
        except Exception as error:
            self._go_without(error)
        self._drop_left_partials()

    def _go_without(self, error: Exception) -> None:
        """A checkpoint that memory has no room for is none: the state is copied first and entered then.

        Raises `error` again where it is another one, and where parts of the copy are in other processes."""
        fault = device_fault(error, tensor_parallel=self.is_tensor_parallel)
        if fault is None or fault.reach is not Reach.MEMORY:
            raise error
        release_memory(error)
        self.num_without_memory += 1
        if self.num_without_memory == 1:
            log.warning("no memory for a checkpoint (%s); lower memory.sysmem_recurrent_cache", fault.reason)

    def _drop_left_partials(self) -> None:
        """A partial page is of no use without the state after it."""
        for frontier in self.frontiers:
            if self.has(frontier.key):
                continue
            self.frontiers.remove(frontier.key)
            entry = self._tier.entries.get(frontier.key)
            if entry is not None and not self._tier._busy(frontier.key, entry):
                del self._tier.entries[frontier.key]
                self._tier.free_slots.append(entry["slot"])

    def _adopt_from_disk(self) -> None:
        """Checkpoints of an earlier process: the tier keeps their positions and, with the partial pages, their
        anchors."""
        with self.disk_tier._lock:
            states = {key: meta["position"] for key, meta in self.disk_tier.states.items()}
            anchors = {key: self.disk_tier.pages[key]["prev_hash"] for key in states if key in self.disk_tier.pages}
        for key, anchor in anchors.items():
            if states[key] % PAGE_SIZE:
                self.frontiers.add(Frontier(key, anchor, states[key] % PAGE_SIZE))
