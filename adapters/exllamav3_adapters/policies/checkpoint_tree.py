"""Checkpoints along token chains: which is the deepest that survives before each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(eq=False, slots=True)
class Checkpoint(Generic[K]):
    """Only `CheckpointTree` writes to it."""

    key: K | None
    """None: the start of every chain, which is no checkpoint."""
    position: int
    """Tokens that the state has seen."""
    size: int
    parent: Checkpoint[K] | None
    """The deepest checkpoint before it on its chain, reachable or not."""
    children: set[Checkpoint[K]] = field(default_factory=set)
    places: set[K] = field(default_factory=set)
    """Keys of the places between its parent and itself, at which there is no checkpoint now."""
    reachable: bool = True
    """The pages up to it can be had, so that a request can resume from it."""


class CheckpointTree(Generic[K]):
    """The links between the checkpoints that survive, kept up to date.

    A key names a place: it stands for all the tokens up to there, as a chained page hash does, so that all chains with
    this key run through the same places before it. A path lists the places of one chain, first to last. The methods
    that change something return the reachable checkpoints that now have another before or after them, some of them
    perhaps twice or for nothing.

    A change costs a constant for each place of the path and for each checkpoint beside or after it.
    """

    def __init__(self) -> None:
        self._start = Checkpoint[K](key=None, position=0, size=0, parent=None)
        self._checkpoints: dict[K, Checkpoint[K]] = {}

    def __len__(self) -> int:
        return len(self._checkpoints)

    def __contains__(self, key: K) -> bool:
        return key in self._checkpoints

    def __getitem__(self, key: K) -> Checkpoint[K]:
        return self._checkpoints[key]

    def __iter__(self) -> Iterator[Checkpoint[K]]:
        return iter(self._checkpoints.values())

    def add(self, key: K, *, position: int, size: int, path: Iterable[K]) -> list[Checkpoint[K]]:
        """The new checkpoint is not part of what is returned."""
        assert key not in self._checkpoints, f"{key!r} has a checkpoint already"
        assert position > 0, f"a checkpoint at position {position}"
        parent, places, changed = self._walk(key, path)
        assert parent.position < position, f"{position} does not come after {parent.position}"
        checkpoint = Checkpoint(key=key, position=position, size=size, parent=parent, places=places)
        after = [child for child in parent.children if key in child.places]
        parent.children.add(checkpoint)
        self._checkpoints[key] = checkpoint
        for child in after:
            self._move(child, checkpoint)
            child.places -= places
            child.places.discard(key)
        return [*changed, *_reachable(after), *self._before(checkpoint)]

    def learn(self, key: K, path: Iterable[K]) -> list[Checkpoint[K]]:
        """A chain that leads to a checkpoint that is known runs through these places."""
        checkpoint = self._checkpoints[key]
        parent, places, changed = self._walk(key, path)
        return [*changed, *self._pass(checkpoint, parent, places)]

    def remove(self, key: K) -> list[Checkpoint[K]]:
        checkpoint = self._checkpoints.pop(key)
        parent, orphans = checkpoint.parent, list(checkpoint.children)
        assert parent is not None
        for child in orphans:
            self._move(child, parent)
            child.places |= checkpoint.places
            child.places.add(key)
        parent.children.remove(checkpoint)
        return [*_reachable(orphans), *self._before(checkpoint)] if checkpoint.reachable else []

    def rekey(self, old: K, new: K) -> None:
        """The place has another name now."""
        assert new not in self._checkpoints, f"{new!r} has a checkpoint already"
        checkpoint = self._checkpoints[new] = self._checkpoints.pop(old)
        checkpoint.key = new

    def set_reachable(self, key: K, reachable: bool) -> list[Checkpoint[K]]:
        checkpoint = self._checkpoints[key]
        if checkpoint.reachable == reachable:
            return []
        checkpoint.reachable = reachable
        return [*_reachable(checkpoint.children), *self._before(checkpoint)]

    def resume_position(self, checkpoint: Checkpoint[K]) -> int:
        """Where a replay up to the checkpoint begins if it is lost: at the deepest reachable one before it, or at 0."""
        return next((before.position for before in self._before(checkpoint)), 0)

    def is_inner(self, checkpoint: Checkpoint[K]) -> bool:
        """A reachable one comes after it, so that only a request that leaves their chain in between resumes at it."""
        return next(_reachable(checkpoint.children), None) is not None

    def _before(self, checkpoint: Checkpoint[K]) -> list[Checkpoint[K]]:
        """The deepest reachable checkpoint before this one, if any."""
        before = checkpoint.parent
        while before is not None and not before.reachable:
            before = before.parent
        return [] if before is None or before is self._start else [before]

    def _walk(self, key: K, path: Iterable[K]) -> tuple[Checkpoint[K], set[K], list[Checkpoint[K]]]:
        """The last checkpoint of a path, the places after it, and the checkpoints that it shows after others."""
        last, places, changed = self._start, set[K](), list[Checkpoint[K]]()
        for place in path:
            if place == key:
                break
            checkpoint = self._checkpoints.get(place)
            if checkpoint is None:
                places.add(place)
                continue
            changed += self._pass(checkpoint, last, places)
            last, places = checkpoint, set()
        return last, places, changed

    def _pass(self, checkpoint: Checkpoint[K], before: Checkpoint[K], places: set[K]) -> list[Checkpoint[K]]:
        """A chain runs from one checkpoint through the places to the other."""
        assert checkpoint.parent is not None
        if checkpoint.parent is before:
            checkpoint.places |= places
        elif checkpoint.parent.position < before.position:  # or the path leaves out what is known
            left = self._before(checkpoint)
            self._move(checkpoint, before)
            checkpoint.places = places
            return [*left, *self._before(checkpoint), *_reachable([checkpoint])]
        return []

    def _move(self, checkpoint: Checkpoint[K], parent: Checkpoint[K]) -> None:
        assert checkpoint.parent is not None
        checkpoint.parent.children.remove(checkpoint)
        checkpoint.parent = parent
        parent.children.add(checkpoint)


def _reachable(checkpoints: Iterable[Checkpoint[K]]) -> Iterator[Checkpoint[K]]:
    """These, and what a replay reaches through the unreachable ones among them."""
    stack = list(checkpoints)
    while stack:
        checkpoint = stack.pop()
        if checkpoint.reachable:
            yield checkpoint
        else:
            stack.extend(checkpoint.children)
