"""An order that knows the requests to come."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from math import inf

from checkpoint_study.prompts import Place, Prompts
from exllamav3_adapters.policies.checkpoint_tree import CheckpointTree
from exllamav3_adapters.policies.prefill_cost import PrefillCost

_MAX_SKIPPED = 400
"""Requests through a checkpoint, all served by deeper ones, after which it counts as not needed again."""


class Foresight:
    """What saves least for each request that it is kept over goes first.

    Greedy, so not a proven bound: the best order would also weigh what the next evictions will be.
    """

    def __init__(self, prompts: Prompts, cost: PrefillCost) -> None:
        self._paths = [prompt.path for prompt in prompts.prompts]
        self._through: dict[Place, list[int]] = defaultdict(list)
        for index, path in enumerate(self._paths):
            for place in path:
                self._through[place].append(index)
        self._cost = cost
        self._tree = CheckpointTree[Place]()
        self._next_use: dict[Place, float] = {}
        self._now = 0

    def __len__(self) -> int:
        return len(self._tree)

    def __contains__(self, key: Place) -> bool:
        return key in self._tree

    def begin(self, index: int) -> None:
        self._now = index

    def add(self, key: Place, *, position: int, size: int, path: Iterable[Place]) -> None:
        if key not in self._tree:
            self._tree.add(key, position=position, size=size, path=path)
            before = self._tree[key].parent
            if before is not None and before.key is not None:
                self._next_use[before.key] = self._find_next_use(before.key)
        self.touch(key)

    def touch(self, key: Place) -> None:
        self._next_use[key] = self._find_next_use(key)

    def victim(self) -> Place | None:
        return min(self._next_use, key=self._worth, default=None)

    def evict(self, key: Place) -> None:
        before, next_use = self._tree[key].parent, self._next_use.pop(key)
        self._tree.remove(key)
        if before is not None and before.key is not None:
            self._next_use[before.key] = min(self._next_use[before.key], next_use)

    def _worth(self, key: Place) -> float:
        if self._next_use[key] <= self._now:  # a deeper one, made since, served that request
            self._next_use[key] = self._find_next_use(key)
        checkpoint = self._tree[key]
        saved = self._cost.between(self._tree.resume_position(checkpoint), checkpoint.position)
        return saved / (self._next_use[key] - self._now)

    def _find_next_use(self, key: Place) -> float:
        """The next request that would resume here, of what is kept now."""
        through = self._through[key]
        first = bisect_right(through, self._now)
        for index in through[first : first + _MAX_SKIPPED]:
            if next(place for place in reversed(self._paths[index]) if place in self._tree) == key:
                return index
        return inf
