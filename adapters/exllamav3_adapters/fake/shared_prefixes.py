"""What the fake engine captures: the leading pages that two requests had in common."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict

from exllamav3_adapters.contract import StoredPrefix
from exllamav3_adapters.engine_settings import MemoryOptions
from exllamav3_adapters.fake.pages import PAGE_SIZE, Tokens
from exllamav3_adapters.policies.prefix_capture import PrefixCapture

_MAX_FIRST_PAGES = 4096


class SharedPrefixes:
    """A page's credit is the number of requests that began with it, so the second one makes it a captured prefix."""

    def __init__(self, memory: MemoryOptions) -> None:
        self._num_requests: OrderedDict[Tokens, Counter[bytes]] = OrderedDict()  # by first page, then by page hash
        self._capture = PrefixCapture(
            page_tokens=PAGE_SIZE,
            min_tokens=memory.aging_prefix_min_tokens,
            max_tokens=memory.aging_prefix_max_tokens,
            max_entries=memory.aging_prefix_max_entries,
        )

    def claim(self, token_ids: tuple[int, ...]) -> None:
        chain = _chain(bytes(token_ids[:-1]))  # a last token is always computed
        first = bytes(token_ids[:PAGE_SIZE])
        num_requests = self._num_requests.setdefault(first, Counter())
        num_requests.update(chain)
        self._num_requests.move_to_end(first)
        if len(self._num_requests) > _MAX_FIRST_PAGES:
            self._num_requests.popitem(last=False)
        self._capture.claim(
            chain, token_ids, num_requests.__getitem__, seconds=time.monotonic(), epoch_seconds=time.time()
        )

    def stored(self, written_after: float, cache_fingerprint: str) -> tuple[StoredPrefix, ...]:
        return tuple(one.stored(cache_fingerprint) for one in self._capture.written_after(written_after))

    def forget(self, token_ids: tuple[int, ...]) -> None:
        self._capture.forget(token_ids)
        start = bytes(token_ids[:PAGE_SIZE])
        for first in [first for first in self._num_requests if start and first.startswith(start)]:
            del self._num_requests[first]


def _chain(tokens: Tokens) -> list[bytes]:
    """Chained hashes of the full pages."""
    chain: list[bytes] = []
    for end in range(PAGE_SIZE, len(tokens) + 1, PAGE_SIZE):
        parent = chain[-1] if chain else b""
        chain.append(hashlib.blake2b(parent + tokens[end - PAGE_SIZE : end], digest_size=16).digest())
    return chain
