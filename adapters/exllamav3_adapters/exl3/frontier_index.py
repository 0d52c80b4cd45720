"""Which checkpoints lie inside a page: pure bookkeeping, no tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frontier:
    """A position inside a page. `anchor` is the chained hash of the last full page before it, None where there is
    none; `key` is the hash of the `num_tokens` tokens after that page, chained to it like a page's."""

    key: bytes
    anchor: bytes | None
    num_tokens: int


class FrontierIndex:
    """Finds frontiers by their anchor. A few lengths follow one page, so a prompt is hashed once for each of them."""

    def __init__(self) -> None:
        self._frontiers: dict[bytes, Frontier] = {}
        self._by_anchor: dict[bytes | None, dict[int, set[bytes]]] = {}

    def __len__(self) -> int:
        return len(self._frontiers)

    def __contains__(self, key: bytes) -> bool:
        return key in self._frontiers

    def __iter__(self) -> Iterator[Frontier]:
        return iter(list(self._frontiers.values()))

    def get(self, key: bytes) -> Frontier | None:
        return self._frontiers.get(key)

    def add(self, frontier: Frontier) -> None:
        """Does nothing where it is known."""
        self._frontiers[frontier.key] = frontier
        self._by_anchor.setdefault(frontier.anchor, {}).setdefault(frontier.num_tokens, set()).add(frontier.key)

    def remove(self, key: bytes) -> None:
        """Does nothing where it is not known."""
        frontier = self._frontiers.pop(key, None)
        if frontier is None:
            return
        lengths = self._by_anchor[frontier.anchor]
        lengths[frontier.num_tokens].discard(key)
        if not lengths[frontier.num_tokens]:
            del lengths[frontier.num_tokens]
        if not lengths:
            del self._by_anchor[frontier.anchor]

    def lengths(self, anchor: bytes | None) -> list[int]:
        """How many tokens after this page some frontier has, longest first."""
        return sorted(self._by_anchor.get(anchor, ()), reverse=True)
