"""What `memory.aging_lfu` does in one engine: the credit of its pages, and the order of eviction by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exllamav3_adapters.engine_settings import MemoryOptions
from exllamav3_adapters.exl3.aging_pagetable import install_aging
from exllamav3_adapters.policies.aging_credit import AgingCredit
from exllamav3_adapters.policies.leaf_order import VictimClass

SECONDS_PER_HOUR = 3600.0

_LEAST_CREDIT_ENTRIES = 65536
_ENTRIES_PER_PAGE = 4


def max_credit_entries(num_pages: int) -> int:
    """Credit is to outlive its page, so the table knows several times the pages of the cache. A small cache turns over
    fast: there 65,536 pages, some 20 MB, reach back over 16 million tokens of prompts."""
    return max(_LEAST_CREDIT_ENTRIES, _ENTRIES_PER_PAGE * num_pages)


class AgingPolicy:
    """Owned by the scheduler and used on its thread. Made before any prompt is pinned, since it changes the page table
    that pins are told to. Raises LoadFailed where the installed exllamav3 is not the one that it was written for."""

    def __init__(self, generator: Any, memory: MemoryOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._credit = AgingCredit(
            half_life_seconds=memory.aging_half_life_hours * SECONDS_PER_HOUR,
            hit_cap_pages=memory.aging_hit_cap_pages,
            weight_cap=memory.aging_weight_cap,
            max_entries=max_credit_entries(generator.pagetable.max_pages),
        )
        self._table = install_aging(generator, credit=self._credit, share=memory.aging_share, clock=clock)
        self._table.on_claim = self._claim
        self._num_credit_hits = 0
        self._num_tokens_saved = 0

    def count_saved(self, cached_tokens: int) -> None:
        """Of a request whose claim counted: the prompt tokens that it found in the cache, whichever tier it was."""
        self._num_tokens_saved += cached_tokens

    def counters(self) -> Mapping[str, float]:
        by_class = self._table.evictions_by_class
        return {
            "credit_hits": self._num_credit_hits,
            "tokens_saved": self._num_tokens_saved,
            "credit_entries": len(self._credit),
            "regretted_evictions": self._table.regretted_evictions,
            **{f"evictions_{victim_class.value}": by_class[victim_class] for victim_class in VictimClass},
        }

    def _claim(self, chain: Sequence[bytes], prompt: tuple[int, ...], seconds: float) -> None:
        if self._credit.claim(chain, seconds):
            self._num_credit_hits += 1
