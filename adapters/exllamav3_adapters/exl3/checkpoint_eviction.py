"""Which checkpoint exllamav3's cache drops for another, by what it would cost to compute it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from exllamav3_adapters.exl3.prefill_times import PrefillTimes
from exllamav3_adapters.policies.gds import GreedyDualSize
from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost


class CheckpointEviction:
    """`GreedyDualSize` over the keys of a `CheckpointCache`, which tells it of all that comes, is used and goes.

    exllamav3 drops checkpoints that no request can reach before it asks for a victim, the longest unused first, so all
    that are here can be reached. The checkpoint of a pinned prefix comes last: its pages stay, and without it they
    would have to be computed again all the same.
    """

    def __init__(self, cost: PrefillCost | None, now: Callable[[], float]) -> None:
        """`cost` as it is set; None has it measured, with the clock `now` of `PrefillTimes`."""
        self._given = cost
        self.times = PrefillTimes(now) if cost is None else None
        """None: nothing is to be measured."""
        self._order = GreedyDualSize[bytes](cost or TYPICAL)
        self._pinned: dict[tuple[int, ...], bytes] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: bytes) -> bool:
        return key in self._order

    def use(self, key: bytes, *, position: int, size: int, places: Sequence[bytes]) -> None:
        """A checkpoint of `size` bytes after `position` tokens was left, or a request resumes from it."""
        self._order.add(key, position=position, size=size, path=places)

    def rekey(self, old: bytes, new: bytes) -> None:
        self._order.rekey(old, new)

    def remove(self, key: bytes) -> None:
        """It leaves, but not for another."""
        self._order.remove(key)

    def evict(self, key: bytes) -> None:
        self._order.evict(key)

    def victim(self, keys: Iterable[bytes]) -> bytes | None:
        """The next to go, of `keys`, which are all there are, the longest unused first. None: nothing is known."""
        if self.times is not None and (cost := self.times.changed_cost()) is not None:
            self._order.set_cost(cost)
        victim = self._order.victim()
        pinned = set(self._pinned.values())
        if victim not in pinned:
            return victim
        others = (key for key in keys if key in self._order and key not in pinned)
        return min(others, key=self._order.priority, default=victim)

    def replay_cost(self, key: bytes) -> float:
        """As `GreedyDualSize.replay_cost`."""
        return self._order.replay_cost(key)

    def pin(self, prefix: tuple[int, ...], key: bytes) -> None:
        """`key` is the deepest checkpoint on a pinned prefix."""
        self._pinned[prefix] = key

    def unpin(self, prefix: tuple[int, ...]) -> None:
        self._pinned.pop(prefix, None)

    def counters(self) -> Mapping[str, float]:
        if self.times is not None:
            return self.times.counters()
        assert self._given is not None
        return {"prefill_cost_d": self._given.linear, "prefill_cost_e": self._given.quadratic}
