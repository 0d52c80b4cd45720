"""Greedy-Dual-Size over checkpoints of recurrent state."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from exllamav3_adapters.policies.checkpoint_tree import Checkpoint, CheckpointTree
from exllamav3_adapters.policies.prefill_cost import PrefillCost

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Standing:
    inflation: float
    """L when the checkpoint was last used."""
    touched: int
    """Grows with each use."""
    entry: int = 0
    """Number of its only current entry in the heap."""


class GreedyDualSize(Generic[K]):
    """The next checkpoint to go is that of the least `H = L + w * cost / size`; L rises to the H of each evicted.

    From Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms" (USITS 1997). The cost is that of replaying from the
    deepest surviving checkpoint of the same chain, so it changes with the neighbours: one that leaves makes those right
    after it dearer, one that arrives makes them cheaper. L counts as of the last use, so what is not used grows
    relatively cheaper. A checkpoint that no request can reach costs nothing and goes before all others, the one used
    longest ago first; a replay does not begin at it either.

    `inner_weight` is w of a checkpoint that another comes after: the conversation goes on at that one, and only a
    request that branches off resumes here. It is 1 for the last of a chain. On sessions of 16 agents in 32 slots 0.25
    recomputes a sixth less than 1, the order of the paper; it never costs more there (`benchmarks/checkpoints.py`).

    Keys and paths as in `CheckpointTree`. A path should name every place on the chain where a checkpoint may be, now or
    later: the hash of each full page, and the keys of the partial-page checkpoints that its tokens extend. A place that
    no path has named yet is only found on a chain when a later one names it. `size` is in bytes, or in whatever unit
    all share.

    A change costs O(log n) for each checkpoint that gets another neighbour on its chain; one that arrives also looks
    once at each place of its path and at each checkpoint that comes after the same one. Not thread-safe.
    """

    def __init__(self, cost: PrefillCost, *, inner_weight: float = 0.25) -> None:
        assert inner_weight > 0, f"a weight of {inner_weight}"
        self._cost = cost.normalised()
        self._inner_weight = inner_weight
        self._tree = CheckpointTree[K]()
        self._standings: dict[K, _Standing] = {}
        self._heap: list[tuple[bool, float, int, int, K]] = []  # reachable, H, touched, entry, key
        self._inflation = 0.0
        self._num_touched = 0
        self._num_entries = 0

    def __len__(self) -> int:
        return len(self._tree)

    def __contains__(self, key: K) -> bool:
        return key in self._tree

    @property
    def inflation(self) -> float:
        """L."""
        return self._inflation

    def add(self, key: K, *, position: int, size: int, path: Iterable[K]) -> None:
        """State was checkpointed after `position` tokens. One that is there already counts as used."""
        if key in self._tree:
            changed = self._tree.learn(key, path)
        else:
            assert size > 0, f"a checkpoint of {size} bytes"
            changed = self._tree.add(key, position=position, size=size, path=path)
            self._standings[key] = _Standing(0.0, 0)
        self._enter(changed)
        self.touch(key)

    def touch(self, key: K) -> None:
        """A request resumes from the checkpoint."""
        standing = self._standings[key]
        self._num_touched += 1
        standing.inflation, standing.touched = self._inflation, self._num_touched
        self._enter([self._tree[key]])

    def set_reachable(self, key: K, reachable: bool) -> None:
        """Whether the pages up to the checkpoint can still be had. A new one is reachable."""
        checkpoint = self._tree[key]
        if checkpoint.reachable != reachable:
            self._enter([checkpoint, *self._tree.set_reachable(key, reachable)])

    def victim(self) -> K | None:
        """The checkpoint to evict next, None where there is none. The same again until something changes."""
        while self._heap:
            _, _, _, entry, key = self._heap[0]
            standing = self._standings.get(key)
            if standing is not None and standing.entry == entry:
                return key
            heapq.heappop(self._heap)
        return None

    def evict(self, key: K) -> None:
        """The checkpoint leaves to make room."""
        self._inflation = max(self._inflation, self.priority(key))
        self.remove(key)

    def remove(self, key: K) -> None:
        """The checkpoint leaves for another reason, which says nothing about what room is worth."""
        del self._standings[key]
        self._enter(self._tree.remove(key))

    def rekey(self, old: K, new: K) -> None:
        """The place of a checkpoint has another name now, at which there is none."""
        self._tree.rekey(old, new)
        self._standings[new] = self._standings.pop(old)
        self._enter([self._tree[new]])

    def set_cost(self, cost: PrefillCost) -> None:
        """From now on replays cost this. Takes O(n) where it differs."""
        if (cost := cost.normalised()) != self._cost:
            self._cost = cost
            self._rebuild()

    def replay_cost(self, key: K) -> float:
        """What losing the checkpoint would cost the next request that needs it; 1 is ten thousand tokens from 0."""
        checkpoint = self._tree[key]
        if not checkpoint.reachable:
            return 0.0
        return self._cost.between(self._tree.resume_position(checkpoint), checkpoint.position)

    def priority(self, key: K) -> float:
        """H."""
        checkpoint = self._tree[key]
        weight = self._inner_weight if self._tree.is_inner(checkpoint) else 1.0
        return self._standings[key].inflation + weight * self.replay_cost(key) / checkpoint.size

    def _enter(self, checkpoints: Iterable[Checkpoint[K]]) -> None:
        """Entries of before stay in the heap until they come up or it is rebuilt."""
        for checkpoint in checkpoints:
            heapq.heappush(self._heap, self._entry(checkpoint))
        if len(self._heap) > 2 * len(self._tree) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [self._entry(checkpoint) for checkpoint in self._tree]
        heapq.heapify(self._heap)

    def _entry(self, checkpoint: Checkpoint[K]) -> tuple[bool, float, int, int, K]:
        key = checkpoint.key
        assert key is not None
        standing = self._standings[key]
        self._num_entries += 1
        standing.entry = self._num_entries
        return checkpoint.reachable, self.priority(key), standing.touched, standing.entry, key
