"""Pages of a cache as a forest: each names the page before it by its hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class PageRecord:
    """What an eviction order knows of one physical page. Only `PageForest` and `LeafOrder` write to it."""

    number: int
    """Names the page for good, wherever its contents move."""
    phash: bytes
    parent: bytes | None = None
    """Hash of the page before it; None for the first page of a prompt."""
    empty: bool = True
    """Holds no token."""
    referenced: bool = False
    """A running request uses it."""
    serial: int = 0
    """Grows with each claim: the larger, the more recent."""
    pinned: bool = False
    parked: bool = False
    """Kept for its credit, inside the credited share of the cache."""
    credit: float = 0.0
    """Log credit with which it was parked."""
    rooted: bool = field(default=True)
    """All pages before it are in the cache."""


class PageForest:
    """The links between pages, kept up to date.

    Each change costs a constant, but for a hash that appears or vanishes below which there are pages: those become
    rooted or orphaned one by one. A hash may be held by two pages for a moment, as exllamav3's reverts do.
    """

    def __init__(self, records: Iterable[PageRecord]) -> None:
        self._holders: dict[bytes, list[PageRecord]] = {}
        self._children: dict[bytes, dict[int, PageRecord]] = {}
        self._num_blocking: dict[bytes, int] = {}  # by parent: children that are not parked
        for record in records:
            self._holders.setdefault(record.phash, []).append(record)
        for record in [record for holders in self._holders.values() for record in holders]:
            self._attach(record)
        for record in self.records():
            self._settle(record)

    def records(self) -> Iterator[PageRecord]:
        for holders in list(self._holders.values()):
            yield from list(holders)

    def holders(self, phash: bytes | None) -> list[PageRecord]:
        return self._holders.get(phash, []) if phash is not None else []

    def has_children(self, record: PageRecord) -> bool:
        return record.phash in self._children

    def has_parked_child(self, phash: bytes) -> bool:
        return len(self._children.get(phash, ())) > self._num_blocking.get(phash, 0)

    def is_blocked(self, record: PageRecord) -> bool:
        """A page after it is in the cache, other than for its credit."""
        return record.phash in self._num_blocking

    def rename(self, record: PageRecord, phash: bytes) -> list[PageRecord]:
        """Returns the pages that became rooted or orphaned by it."""
        old = record.phash
        holders = self._holders[old]
        holders.remove(record)
        if not holders:
            del self._holders[old]
        record.phash = phash
        self._holders.setdefault(phash, []).append(record)
        changed = self._settle(record)
        for child in [*self._children.get(old, {}).values(), *self._children.get(phash, {}).values()]:
            changed += self._settle(child)
        return changed

    def reparent(self, record: PageRecord, parent: bytes | None) -> list[PageRecord]:
        """Returns the pages that became rooted or orphaned by it."""
        self._detach(record)
        record.parent = parent
        self._attach(record)
        return self._settle(record)

    def set_parked(self, record: PageRecord, parked: bool) -> None:
        assert record.parked != parked, f"page {record.number} is {'' if parked else 'not '}parked already"
        record.parked = parked
        if record.parent is not None:
            self._count_blocking(record.parent, -1 if parked else 1)

    def _attach(self, record: PageRecord) -> None:
        if record.parent is not None:
            self._children.setdefault(record.parent, {})[record.number] = record
            if not record.parked:
                self._count_blocking(record.parent, 1)

    def _detach(self, record: PageRecord) -> None:
        if record.parent is not None:
            siblings = self._children[record.parent]
            del siblings[record.number]
            if not siblings:
                del self._children[record.parent]
            if not record.parked:
                self._count_blocking(record.parent, -1)

    def _count_blocking(self, parent: bytes, change: int) -> None:
        count = self._num_blocking.get(parent, 0) + change
        if count:
            self._num_blocking[parent] = count
        else:
            del self._num_blocking[parent]

    def _settle(self, record: PageRecord) -> list[PageRecord]:
        """Brings `rooted` up to date from this page on."""
        changed: list[PageRecord] = []
        waiting = [record]
        while waiting:
            page = waiting.pop()
            rooted = page.parent is None or any(p.rooted and p is not page for p in self.holders(page.parent))
            if rooted != page.rooted:
                page.rooted = rooted
                changed.append(page)
                waiting += self._children.get(page.phash, {}).values()
        return changed
