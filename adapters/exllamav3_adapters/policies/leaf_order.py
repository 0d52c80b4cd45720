"""Which page of a cache goes next: an order that is kept up to date instead of sorted at each allocation."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum

from exllamav3_adapters.policies.page_forest import PageForest, PageRecord

_ORPHAN, _ROOTED = 1, 2
_NO_CREDIT = -math.inf
_MIN_CREDITED_PAGES = 32
"""Room for a few heads: a share of a small cache holds none."""


def credited_pages(num_pages: int, share: float) -> int:
    """How many pages of a cache of `num_pages` may be kept for their credit. A share of 0 keeps none."""
    return max(int(num_pages * share), min(_MIN_CREDITED_PAGES, num_pages // 2)) if share else 0


class VictimClass(Enum):
    EMPTY = "empty"
    ORPHAN = "orphan"
    """A page before it is gone, so that no request can reach it."""
    RECENCY = "recency"
    """The leaf that was claimed longest ago."""
    CREDIT = "credit"
    """The page of least credit in the credited share."""
    LAST_RESORT = "last_resort"
    """Pinned, or before a page in use, or needed by the allocation in progress."""


class LeafOrder:
    """Victims one by one: empty pages, orphans, then leaves by recency, but for a share of the cache kept by credit.

    A leaf whose turn by recency has come and that has credit is parked instead, at most `credited_pages` of them; when
    there are more, the parked leaf of least credit goes. One page after a credited one is kept with it. So recency
    decides over the whole cache but this share, and a share as large as the cache is an order by credit first and
    recency second. Chains are only eaten from their ends: a page before one that is referenced, protected or pinned is
    never taken before the last resort.

    `log_credit` gives the credit of a page hash in a form that does not change with time between two claims
    (`AgingCredit.log_credit`), None for none. Every change costs O(log n); a last resort O(n log n).
    """

    def __init__(
        self,
        records: Iterable[PageRecord],
        *,
        credited_pages: int,
        log_credit: Callable[[bytes], float | None],
    ) -> None:
        self._records = list(records)
        assert [record.number for record in self._records] == list(range(len(self._records)))
        self._forest = PageForest(self._records)
        self._credited_pages = credited_pages
        self._log_credit = log_credit
        self._num_parked = 0
        self._empties: list[tuple[int, int]] = []  # serial, number
        self._leaves: list[tuple[int, int, int]] = []  # class, serial, number
        self._parked: list[tuple[float, int, int]] = []  # log credit, serial, number
        self._protected: Collection[bytes] = ()
        self._held: list[PageRecord] = []  # leaves that the allocation in progress protects
        self._last_resort: deque[PageRecord] | None = None
        for record in self._records:
            self._offer(record)

    def __getitem__(self, number: int) -> PageRecord:
        return self._records[number]

    @property
    def num_parked(self) -> int:
        return self._num_parked

    # --- changes of the table ---------------------------------------------------------------------------------

    def rename(self, number: int, phash: bytes) -> None:
        """The page has other contents now, or other names for them."""
        record = self._records[number]
        if phash == record.phash:
            return
        self._unpark(record)
        changed = self._forest.rename(record, phash)
        record.pinned = False
        self._offer_all([record, *changed])

    def reparent(self, number: int, parent: bytes | None) -> None:
        record = self._records[number]
        if parent == record.parent:
            return
        self._unpark(record)
        old_parent = record.parent
        changed = self._forest.reparent(record, parent)
        self._offer_all([record, *self._forest.holders(old_parent), *changed])

    def set_empty(self, number: int, empty: bool) -> None:
        record = self._records[number]
        if empty != record.empty:
            self._unpark(record)
            record.empty = empty
            self._offer(record)

    def set_serial(self, number: int, serial: int) -> None:
        record = self._records[number]
        if serial != record.serial:
            self._unpark(record)
            record.serial = serial
            self._offer(record)

    def set_referenced(self, number: int, referenced: bool) -> None:
        record = self._records[number]
        if referenced != record.referenced:
            self._unpark(record)
            record.referenced = referenced
            self._offer(record)

    def set_pinned(self, number: int, pinned: bool) -> None:
        """A pin belongs to the contents: it is gone when they are."""
        record = self._records[number]
        if pinned != record.pinned:
            self._unpark(record)
            record.pinned = pinned
            self._offer(record)

    # --- victims ----------------------------------------------------------------------------------------------

    def begin(self, protected: Collection[bytes] = ()) -> None:
        """An allocation starts that itself needs the pages of these hashes."""
        held, self._held = self._held, []
        self._protected, self._last_resort = protected, None
        self._offer_all(held)

    def next_victim(self) -> tuple[PageRecord, VictimClass] | None:
        """The page to take now, or None where every page is referenced. The same again until the table changes."""
        while self._empties:
            record = self._records[self._empties[0][1]]
            if self._is_current_empty(record, self._empties[0][0]):
                if record.phash not in self._protected:
                    return record, VictimClass.EMPTY
                self._held.append(record)
            heapq.heappop(self._empties)
        while self._leaves:
            if self._num_parked > self._credited_pages and (worst := self._least_parked()) is not None:
                return worst, VictimClass.CREDIT
            page_class, serial, number = self._leaves[0]
            record = self._records[number]
            if self._is_current_leaf(record, page_class, serial):
                if record.phash in self._protected:
                    self._held.append(record)
                elif page_class == _ORPHAN:
                    return record, VictimClass.ORPHAN
                elif self._park(record):
                    continue
                else:
                    return record, VictimClass.RECENCY
            heapq.heappop(self._leaves)
        if (worst := self._least_parked()) is not None:
            return worst, VictimClass.CREDIT
        return self._final_victim()

    def drain(self) -> Iterator[bytes]:
        """Page hashes from the first victim to the last; nothing is left in the order afterwards."""
        self.begin()
        while (victim := self.next_victim()) is not None:
            record = victim[0]
            yield record.phash
            self.set_referenced(record.number, True)
            self.reparent(record.number, None)
            self.rename(record.number, b"drained %d" % record.number)

    def _park(self, record: PageRecord) -> bool:
        """Parks a leaf whose turn has come, if its credit is worth it; its entry leaves the heap."""
        assert self._leaves[0][2] == record.number
        credit = self._credit_of(record)
        if not self._forest.has_children(record):  # else pages after it are parked, and it is needed to reach them
            if credit is None or not self._credited_pages:
                return False
            if self._num_parked >= self._credited_pages:
                worst = self._least_parked()
                if worst is None or worst.credit >= credit:
                    return False
        heapq.heappop(self._leaves)
        record.credit = credit if credit is not None else _NO_CREDIT
        self._forest.set_parked(record, True)
        self._num_parked += 1
        if not self._forest.has_children(record):
            heapq.heappush(self._parked, (record.credit, record.serial, record.number))
        self._offer_all(self._forest.holders(record.parent))
        return True

    def _credit_of(self, record: PageRecord) -> float | None:
        """The page's own, or that of the page before it, for one page of those that come after it: a head ends inside
        a page, and whichever prompt filled the page, the engine can take the head's last tokens from it."""
        credit = self._log_credit(record.phash)
        if credit is None and record.parent is not None and not self._forest.has_parked_child(record.parent):
            credit = self._log_credit(record.parent)
        return credit

    def _unpark(self, record: PageRecord) -> None:
        """Before any change of a page; whether it is parked again is decided when its turn comes."""
        if record.parked:
            self._forest.set_parked(record, False)
            self._num_parked -= 1

    def _least_parked(self) -> PageRecord | None:
        while self._parked:
            credit, serial, number = self._parked[0]
            record = self._records[number]
            if self._is_current_parked(record, credit, serial):
                if record.phash not in self._protected:
                    return record
                self._held.append(record)
            heapq.heappop(self._parked)
        return None

    def _final_victim(self) -> tuple[PageRecord, VictimClass] | None:
        if self._last_resort is None:
            self._last_resort = deque(self._in_last_resort())
        while self._last_resort and self._last_resort[0].referenced:
            self._last_resort.popleft()
        return (self._last_resort[0], VictimClass.LAST_RESORT) if self._last_resort else None

    def _in_last_resort(self) -> list[PageRecord]:
        """What is left: ordinary pages, pinned ones, protected ones, and of each the deepest in their chains first."""
        left = [record for record in self._records if not record.referenced]
        depths = self._depths(left)
        left.sort(key=lambda r: (r.phash in self._protected, r.pinned, -depths[r.number], r.serial))
        return left

    def _depths(self, records: Iterable[PageRecord]) -> dict[int, int]:
        """By number: how many pages of its chain are before it."""
        depths: dict[int, int] = {}
        for record in records:
            path: list[PageRecord] = []
            page: PageRecord | None = record
            while page is not None and page.number not in depths:
                depths[page.number] = 0  # ends a cycle, should there be one
                path.append(page)
                page = next(iter(self._forest.holders(page.parent)), None)
            depth = -1 if page is None else depths[page.number]
            for page in reversed(path):
                depth += 1
                depths[page.number] = depth
        return depths

    # --- the heaps: an entry counts only while it says what the page is ------------------------------------------

    def _is_current_empty(self, record: PageRecord, serial: int) -> bool:
        return record.empty and not record.referenced and record.serial == serial

    def _is_current_leaf(self, record: PageRecord, page_class: int, serial: int) -> bool:
        return (
            self._is_leaf(record) and record.serial == serial and page_class == (_ROOTED if record.rooted else _ORPHAN)
        )

    def _is_current_parked(self, record: PageRecord, credit: float, serial: int) -> bool:
        is_same = record.parked and record.credit == credit and record.serial == serial
        return is_same and not self._forest.has_children(record)

    def _is_leaf(self, record: PageRecord) -> bool:
        return not (
            record.referenced or record.empty or record.pinned or record.parked or self._forest.is_blocked(record)
        )

    def _offer_all(self, records: Iterable[PageRecord]) -> None:
        for record in records:
            self._offer(record)

    def _offer(self, record: PageRecord) -> None:
        """Puts the page where it belongs now, if it can be a victim."""
        if record.referenced:
            return
        if record.empty:
            heapq.heappush(self._empties, (record.serial, record.number))
        elif record.parked:
            is_leaf = not self._forest.has_children(record)
            if not record.rooted or (is_leaf and record.credit == _NO_CREDIT):
                self._unpark(record)
                self._offer(record)
            elif is_leaf:
                heapq.heappush(self._parked, (record.credit, record.serial, record.number))
        elif self._is_leaf(record):
            heapq.heappush(self._leaves, (_ROOTED if record.rooted else _ORPHAN, record.serial, record.number))
        self._compact()

    def _compact(self) -> None:
        """Drops entries that have gone stale, once they are the most: a constant for each one pushed."""
        limit = 4 * len(self._records) + 64
        if len(self._leaves) > limit:
            current = {n: (c, s, n) for c, s, n in self._leaves if self._is_current_leaf(self._records[n], c, s)}
            self._leaves = list(current.values())
            heapq.heapify(self._leaves)
        if len(self._empties) > limit:
            self._empties = list({e for e in self._empties if self._is_current_empty(self._records[e[1]], e[0])})
            heapq.heapify(self._empties)
        if len(self._parked) > limit:
            self._parked = [(r.credit, r.serial, r.number) for r in self._records if r.parked]
            heapq.heapify(self._parked)
