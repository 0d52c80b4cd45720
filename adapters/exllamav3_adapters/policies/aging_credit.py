"""Decaying credit of the prompt heads that several conversations share."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_END = b""
"""Continuation of a prompt's last full page."""


@dataclass(frozen=True, slots=True)
class PageCredit:
    """What to keep of a page's credit beyond the process, and when it was asked for."""

    page: bytes
    parent: bytes | None
    """The page before it; None for the first of a prompt."""
    weight: float


@dataclass(slots=True)
class _Entry:
    parent: bytes | None
    continuation: bytes | None = None
    """The page that last came after this one; None: not known."""
    log_credit: float | None = None


class AgingCredit:
    """Credit of pages by hash, in a bounded table that outlives the pages.

    A page is credited when a prompt goes on after it otherwise than the last prompt that contained it, or ends after
    it as another did: where prompts part, all pages up to there are shared by more than one of them. A conversation
    alone only lengthens its chain and earns nothing, but for turns of less than a page. Only the first `hit_cap_pages`
    pages of a prompt count.

    At time t a page credited at times t_i weighs `sum(2 ** ((t_i - t) / half_life))`. What is kept is
    `log2(weight) + t / half_life`, which does not change between two credits, so pages never have to be aged.
    `weight_cap` bounds the weight. 0 means no bound, for both caps. `seconds` are of any one clock. Not thread-safe.
    """

    def __init__(self, *, half_life_seconds: float, hit_cap_pages: int, weight_cap: float, max_entries: int) -> None:
        assert half_life_seconds > 0, f"a half-life of {half_life_seconds} s"
        assert max_entries > 0, f"a table of {max_entries} entries"
        self._half_life = half_life_seconds
        self._hit_cap = hit_cap_pages
        self._log_cap = math.log2(weight_cap) if weight_cap else math.inf
        self._max_entries = max_entries
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # the one claimed longest ago first

    def __len__(self) -> int:
        return len(self._entries)

    def claim(self, chain: Sequence[bytes], seconds: float) -> int:
        """A request has claimed the pages of these chained hashes, first to last. Returns how many it credits."""
        pages = chain[: self._hit_cap] if self._hit_cap else chain
        num_shared = 0
        parent: bytes | None = None
        for index, page in enumerate(pages):
            following = chain[index + 1] if index + 1 < len(chain) else _END
            entry = self._entries.get(page)
            if entry is None:
                entry = self._entries[page] = _Entry(parent)
            parent = page
            if _parts(entry.continuation, following):
                num_shared = index + 1
            entry.continuation = following
        for page in pages[:num_shared]:
            self._credit(self._entries[page], seconds)
        # The first pages last, so that the table never forgets a page before the ones that come after it.
        for page in reversed(pages):
            self._entries.move_to_end(page)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return num_shared

    def log_credit(self, page: bytes) -> float | None:
        """Orders pages by credit, at whatever time; None: it has none."""
        entry = self._entries.get(page)
        return None if entry is None else entry.log_credit

    def weight(self, page: bytes, seconds: float) -> float:
        log_credit = self.log_credit(page)
        return 0.0 if log_credit is None else float(2.0 ** (log_credit - seconds / self._half_life))

    def forget(self, pages: Collection[bytes]) -> set[bytes]:
        """Forgets these pages and all that came after them in any prompt. Returns those that it knew."""
        children: dict[bytes, list[bytes]] = {}
        for page, entry in self._entries.items():
            if entry.parent is not None:
                children.setdefault(entry.parent, []).append(page)
        known: set[bytes] = set()
        waiting = list(pages)
        while waiting:
            page = waiting.pop()
            if self._entries.pop(page, None) is not None:
                known.add(page)
            waiting += children.pop(page, ())
        return known

    def page_credit(self, page: bytes, seconds: float) -> PageCredit | None:
        """What `restore` takes back in a later process; None: it has no credit."""
        entry = self._entries.get(page)
        if entry is None or entry.log_credit is None:
            return None
        return PageCredit(page, entry.parent, self.weight(page, seconds))

    def restore(self, credit: PageCredit, seconds: float, elapsed_seconds: float) -> None:
        """Takes back what `page_credit` gave `elapsed_seconds` ago, under the clock of now. Pages are to come in the
        order in which they may be forgotten again; one that is known already stays as it is."""
        if credit.weight <= 0 or credit.page in self._entries or len(self._entries) >= self._max_entries:
            return
        then = (seconds - max(0.0, elapsed_seconds)) / self._half_life
        log_credit = min(math.log2(credit.weight), self._log_cap) + then
        self._entries[credit.page] = _Entry(credit.parent, log_credit=log_credit)

    def _credit(self, entry: _Entry, seconds: float) -> None:
        now = seconds / self._half_life
        if entry.log_credit is None:
            entry.log_credit = now
        else:
            high, low = max(entry.log_credit, now), min(entry.log_credit, now)
            entry.log_credit = min(high + math.log2(1.0 + 2.0 ** (low - high)), now + self._log_cap)


def _parts(known: bytes | None, following: bytes) -> bool:
    if known is None:
        return False
    if known == _END:
        return following == _END
    return following != known
