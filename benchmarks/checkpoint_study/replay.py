"""Checkpoints in a number of slots, under one workload.

Requests run one after another. Each resumes at the deepest checkpoint inside its prompt, at least one token before the
end, and computes the rest; then it leaves checkpoints of its own. The pages below a checkpoint are always there: what
is measured is the order of the checkpoints alone. All are of one size, as the states of one model are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from checkpoint_study.prompts import Place, Prompts

Resumed = NDArray[np.int64]
"""By request: the position, in tokens, from which it was computed."""


class CheckpointOrder(Protocol):
    """Which checkpoint goes first. `GreedyDualSize` is one."""

    def __len__(self) -> int: ...

    def __contains__(self, key: Place) -> bool: ...

    def add(self, key: Place, *, position: int, size: int, path: Iterable[Place]) -> None: ...

    def touch(self, key: Place) -> None: ...

    def victim(self) -> Place | None: ...

    def evict(self, key: Place) -> None: ...


@runtime_checkable
class SeesRequests(Protocol):
    def begin(self, index: int) -> None:
        """Request number `index` comes."""


def replay(prompts: Prompts, slots: int, order: CheckpointOrder) -> Resumed:
    resumed = np.zeros(len(prompts.prompts), np.int64)
    positions = prompts.positions
    for index, prompt in enumerate(prompts.prompts):
        if isinstance(order, SeesRequests):
            order.begin(index)
        deepest = next((place for place in reversed(prompt.path) if place in order), None)
        if deepest is not None:
            order.touch(deepest)
            resumed[index] = positions[deepest]
        for place in prompt.made:
            # A job only passes what lies after the point at which it resumed.
            if positions[place] <= resumed[index]:
                continue
            while place not in order and len(order) >= slots:
                victim = order.victim()
                assert victim is not None
                order.evict(victim)
            order.add(place, position=positions[place], size=1, path=prompt.path)
    return resumed
