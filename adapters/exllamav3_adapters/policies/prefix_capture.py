"""Which beginnings of prompts are worth keeping beyond the process: those that several prompts share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exllamav3_adapters.contract import StoredPrefix

THRESHOLD = 1.5
"""Credit that a prefix needs: prompts have parted at its end twice within a half-life. Once happens by chance, such as
when a user edits a message."""
REWRITE_SECONDS = 300.0
"""A prefix that is hit all the time is written this seldom, so that whoever asks for news mostly hears of none."""
_TICK_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class CapturedPrefix:
    chain: tuple[bytes, ...]
    """Chained hashes of its pages."""
    token_ids: tuple[int, ...]
    credit: float
    seconds: float
    """When it was written, by the clock that tells how long ago that is."""
    written_at: float
    """The same in seconds since the epoch, and later than that of any that was written before it."""

    def stored(self, cache_fingerprint: str) -> StoredPrefix:
        return StoredPrefix(
            digest=self.chain[-1].hex(),
            token_ids=self.token_ids,
            credit=self.credit,
            written_at=self.written_at,
            cache_fingerprint=cache_fingerprint,
        )


class PrefixCapture:
    """Records of each prompt what it shares with others, in whole pages: up to its deepest page of enough credit.

    One that is shorter than `min_tokens` is not recorded, and one that is longer than `max_tokens` is cut there. Of
    the records on one chain the longest that is still hit stays. Past `max_entries` the one goes that was written
    longest ago. Not thread-safe.
    """

    def __init__(
        self, *, page_tokens: int, min_tokens: int, max_tokens: int, max_entries: int, threshold: float = THRESHOLD
    ) -> None:
        self._page_tokens = page_tokens
        self._min_tokens = min_tokens
        self._max_pages = max_tokens // page_tokens
        self._max_entries = max_entries
        self._threshold = threshold
        self._recorded: OrderedDict[bytes, CapturedPrefix] = OrderedDict()  # by last page, least recently written first
        self._last_written_at = 0.0

    def __len__(self) -> int:
        return len(self._recorded)

    def claim(
        self,
        chain: Sequence[bytes],
        token_ids: tuple[int, ...],
        credit_of: Callable[[bytes], float],
        *,
        seconds: float,
        epoch_seconds: float,
    ) -> None:
        """A request has claimed the pages of these chained hashes, the first ones of its tokens."""
        num_shared = next((n for n in range(len(chain), 0, -1) if credit_of(chain[n - 1]) >= self._threshold), 0)
        num_pages = min(num_shared, self._max_pages)
        if not num_pages or num_pages * self._page_tokens < self._min_tokens:
            return
        pages = tuple(chain[:num_pages])
        if self._is_recorded(pages, seconds):
            return
        for page in pages:
            self._recorded.pop(page, None)
        # A clock that is set back must not hide what is new from those who ask for it by time.
        self._last_written_at = max(epoch_seconds, self._last_written_at + _TICK_SECONDS)
        self._recorded[pages[-1]] = CapturedPrefix(
            chain=pages,
            token_ids=token_ids[: num_pages * self._page_tokens],
            credit=credit_of(pages[-1]),
            seconds=seconds,
            written_at=self._last_written_at,
        )
        while len(self._recorded) > self._max_entries:
            self._recorded.popitem(last=False)

    def forget(self, token_ids: tuple[int, ...]) -> None:
        """Drops what begins with the first page of these tokens, or with them all where they are less than a page."""
        start = token_ids[: self._page_tokens]
        if start:
            doomed = [page for page, one in self._recorded.items() if one.token_ids[: len(start)] == start]
            for page in doomed:
                del self._recorded[page]

    def written_after(self, epoch_seconds: float) -> list[CapturedPrefix]:
        """Most recently written first."""
        return [one for one in reversed(self._recorded.values()) if one.written_at > epoch_seconds]

    def _is_recorded(self, pages: tuple[bytes, ...], seconds: float) -> bool:
        """It, or a longer one that begins with it, was written lately."""
        last = len(pages) - 1
        return any(
            seconds - one.seconds < REWRITE_SECONDS and len(one.chain) > last and one.chain[last] == pages[last]
            for one in self._recorded.values()
        )
