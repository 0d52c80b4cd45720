"""What `memory.aging_lfu` does in one engine: page credit, what is kept and captured by it, and the eviction order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from exllamav3.constants import PAGE_SIZE

from exllamav3_adapters.contract import StoredPrefix
from exllamav3_adapters.credit_path import credit_path
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions
from exllamav3_adapters.exl3.aging_pagetable import install_aging
from exllamav3_adapters.exl3.credit_file import CreditFile, StoredCredit
from exllamav3_adapters.exl3.credit_writer import CreditWriter
from exllamav3_adapters.policies.aging_credit import AgingCredit
from exllamav3_adapters.policies.leaf_order import VictimClass
from exllamav3_adapters.policies.prefix_capture import THRESHOLD, PrefixCapture

SECONDS_PER_HOUR = 3600.0

_LEAST_CREDIT_ENTRIES = 65536
_ENTRIES_PER_PAGE = 4


def max_credit_entries(num_pages: int) -> int:
    """Credit is to outlive its page, so the table knows several times the pages of the cache. A small cache turns over
    fast: there 65,536 pages, some 20 MB, reach back over 16 million tokens of prompts."""
    return max(_LEAST_CREDIT_ENTRIES, _ENTRIES_PER_PAGE * num_pages)


class AgingPolicy:
    """Owned by the scheduler and used on its thread, but for `settle`. Made before any prompt is pinned, since it
    changes the page table that pins are told to."""

    def __init__(
        self,
        generator: Any,
        settings: EngineSettings,
        *,
        cache_fingerprint: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Blocks while the credit of an earlier process is read. `wall_clock` gives seconds since the epoch. Raises
        LoadFailed where the installed exllamav3 is not the one that this was written for."""
        memory = settings.memory
        half_life_seconds = memory.aging_half_life_hours * SECONDS_PER_HOUR
        max_entries = max_credit_entries(generator.pagetable.max_pages)
        self._credit = AgingCredit(
            half_life_seconds=half_life_seconds,
            hit_cap_pages=memory.aging_hit_cap_pages,
            weight_cap=memory.aging_weight_cap,
            max_entries=max_entries,
        )
        self._table = install_aging(generator, credit=self._credit, share=memory.aging_share, clock=clock)
        self._table.on_claim = self._claim
        self._capture = _make_capture(memory) if memory.aging_capture_prefixes else None
        self._cache_fingerprint = cache_fingerprint
        self._wall_clock = wall_clock
        self._num_credit_hits = 0
        self._num_tokens_saved = 0
        self._writer: CreditWriter | None = None
        if memory.aging_persist_dir is not None:
            file = CreditFile(
                credit_path(memory.aging_persist_dir, settings.model_key),
                fingerprint=cache_fingerprint,
                half_life_seconds=half_life_seconds,
                max_entries=max_entries,
            )
            self._writer = CreditWriter(file, max_pending=max_entries)
            for stored in self._writer.start():
                self._credit.restore(stored.credit, clock(), wall_clock() - stored.at)

    def count_saved(self, cached_tokens: int) -> None:
        """Of a request whose claim counted: the prompt tokens that it found in the cache, whichever tier it was."""
        self._num_tokens_saved += cached_tokens

    def counters(self) -> Mapping[str, float]:
        by_class = self._table.evictions_by_class
        return {
            "credit_hits": self._num_credit_hits,
            "tokens_saved": self._num_tokens_saved,
            "credit_entries": len(self._credit),
            "captured_prefixes": len(self._capture) if self._capture is not None else 0,
            "regretted_evictions": self._table.regretted_evictions,
            **{f"evictions_{victim_class.value}": by_class[victim_class] for victim_class in VictimClass},
        }

    def captured(self, written_after: float) -> tuple[StoredPrefix, ...]:
        if self._capture is None:
            return ()
        return tuple(one.stored(self._cache_fingerprint) for one in self._capture.written_after(written_after))

    def forget(self, token_ids: tuple[int, ...], pages: Collection[bytes]) -> None:
        """Of this prompt, its pages and what follows them, nothing is known any more; on disk once `settle` returns."""
        if self._capture is not None:
            self._capture.forget(token_ids)
        known = self._credit.forget(pages)
        self._table.forget_evicted(known | set(pages))
        if self._writer is not None:
            self._writer.forget(known | set(pages))

    async def settle(self) -> None:
        """On the loop. Returns when the disk has been told all, whether or not it took it."""
        if self._writer is not None:
            await asyncio.wrap_future(self._writer.settled())

    def close(self) -> None:
        """Writes what is to be kept. Blocks."""
        if self._writer is not None:
            self._writer.close()

    def _claim(self, chain: Sequence[bytes], prompt: tuple[int, ...], seconds: float) -> None:
        credited = chain[: self._credit.claim(chain, seconds)]
        now = self._wall_clock()
        if credited:
            self._num_credit_hits += 1
        if credited and self._writer is not None:
            page_credits = [self._credit.page_credit(page, seconds) for page in credited]
            self._writer.put([StoredCredit(credit, now) for credit in page_credits if credit is not None])
        if self._capture is not None and prompt:
            self._capture.claim(
                chain, prompt, lambda page: self._credit.weight(page, seconds), seconds=seconds, epoch_seconds=now
            )


def _make_capture(memory: MemoryOptions) -> PrefixCapture:
    cap = memory.aging_weight_cap
    return PrefixCapture(
        page_tokens=PAGE_SIZE,
        min_tokens=memory.aging_prefix_min_tokens,
        max_tokens=memory.aging_prefix_max_tokens,
        max_entries=memory.aging_prefix_max_entries,
        # Credit decays from the cap at once, so a threshold that high would never be met.
        threshold=min(THRESHOLD, cap / 2) if cap else THRESHOLD,
    )
