"""Orders that Greedy-Dual-Size is compared with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from checkpoint_study.prompts import Place
from exllamav3_adapters.policies.checkpoint_tree import Checkpoint, CheckpointTree
from exllamav3_adapters.policies.prefill_cost import PrefillCost


class Lru:
    """exllamav3's `RecurrentCache`, where every checkpoint can be reached."""

    def __init__(self) -> None:
        self._keys: OrderedDict[Place, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Place) -> bool:
        return key in self._keys

    def add(self, key: Place, *, position: int, size: int, path: Iterable[Place]) -> None:
        self._keys[key] = None
        self.touch(key)

    def touch(self, key: Place) -> None:
        self._keys.move_to_end(key)

    def victim(self) -> Place | None:
        return next(iter(self._keys), None)

    def evict(self, key: Place) -> None:
        del self._keys[key]


@dataclass(slots=True)
class Use:
    inflation: float = 0.0
    """L at the last use."""
    serial: int = 0
    """Grows with each use of any."""
    times: int = 0
    cost: float = 0.0
    """At the last use."""


Score = Callable[[Use, float, Checkpoint[Place]], float]
"""From the uses, the cost of a replay as things are, and the checkpoint."""


class Scored:
    """The least score goes first, of equal ones the one used longest ago; computed from nothing at each eviction. `L`
    rises to the score where `ages`."""

    def __init__(self, score: Score, cost: PrefillCost, *, ages: bool = True) -> None:
        self._score = score
        self._cost = cost.normalised()
        self._ages = ages
        self._tree = CheckpointTree[Place]()
        self._uses: dict[Place, Use] = {}
        self._inflation = 0.0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._tree)

    def __contains__(self, key: Place) -> bool:
        return key in self._tree

    def add(self, key: Place, *, position: int, size: int, path: Iterable[Place]) -> None:
        if key in self._tree:
            self._tree.learn(key, path)
        else:
            self._tree.add(key, position=position, size=size, path=path)
            self._uses[key] = Use()
        self.touch(key)

    def touch(self, key: Place) -> None:
        use = self._uses[key]
        self._serial += 1
        use.inflation, use.serial, use.times = self._inflation, self._serial, use.times + 1
        use.cost = self._replay_cost(self._tree[key])

    def victim(self) -> Place | None:
        return min(self._tree, key=lambda c: (self._score_of(c), self._uses[c.key].serial)).key

    def evict(self, key: Place) -> None:
        if self._ages:
            self._inflation = max(self._inflation, self._score_of(self._tree[key]))
        self._tree.remove(key)
        del self._uses[key]

    def _score_of(self, checkpoint: Checkpoint[Place]) -> float:
        return self._score(self._uses[checkpoint.key], self._replay_cost(checkpoint), checkpoint)

    def _replay_cost(self, checkpoint: Checkpoint[Place]) -> float:
        return self._cost.between(self._tree.resume_position(checkpoint), checkpoint.position)
