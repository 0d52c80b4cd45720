"""The fake engine's K/V cache: pages found again by the chain of tokens that led to them, LRU when full."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

PAGE_SIZE = 256
Tokens = bytes
Key = bytes
"""Every token from the start of the prompt to the end of the page: plain, and exact."""


@dataclass(eq=False, slots=True)
class Page:
    """`key` is None while the page is being filled, and for good once it was forgotten."""

    key: Key | None = None
    num_holders: int = 0


@dataclass(eq=False, slots=True)
class Lease:
    """The pages that one request holds. The first `num_cached` came filled."""

    token_ids: Tokens
    pages: list[Page]
    num_cached: int
    publishes: bool = True
    """False once the prompt was forgotten: what it computes then is not to be found again."""


def num_pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)


@dataclass(eq=False, slots=True)
class PageCache:
    """`capacity` and all sizes are in pages. A chain's pages are touched leaf first, so that LRU evicts leaves."""

    capacity: int
    num_evictions: int = 0
    _index: OrderedDict[Key, Page] = field(default_factory=OrderedDict)
    _leases: set[Lease] = field(default_factory=lambda: set[Lease]())
    _pins: dict[Tokens, frozenset[Key]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Key]:
        """The pages that can be found, the first to be evicted first."""
        return iter(self._index)

    def __contains__(self, key: Key) -> bool:
        return key in self._index

    @property
    def num_indexed(self) -> int:
        return len(self._index)

    @property
    def num_used(self) -> int:
        return len(self._held())

    @property
    def num_reusable(self) -> int:
        return sum(page.num_holders == 0 for page in self._index.values())

    @property
    def num_pinned(self) -> int:
        return len(self._pinned())

    def reserve(self, token_ids: Tokens, num_tokens: int) -> Lease | None:
        """Pages for `num_tokens` tokens that begin with the prompt; None if others hold too many now."""
        found = self._match(token_ids)
        num_fresh = num_pages_for(num_tokens) - len(found)
        for page in found:
            page.num_holders += 1
        if not self._make_room(num_fresh):
            for page in found:
                page.num_holders -= 1
            return None
        fresh = [Page(num_holders=1) for _ in range(num_fresh)]
        lease = Lease(token_ids=token_ids, pages=[*found, *fresh], num_cached=len(found))
        self._leases.add(lease)
        return lease

    def publish(self, lease: Lease, token_ids: Tokens) -> None:
        """Lets others find the pages that are now filled; `token_ids` is all that the request has computed."""
        if not lease.publishes:
            return
        for number, page in enumerate(lease.pages[: len(token_ids) // PAGE_SIZE]):
            if page.key is None:
                key = token_ids[: (number + 1) * PAGE_SIZE]
                twin = self._index.get(key)
                if twin is None:
                    page.key = key
                    self._index[key] = page
                else:
                    twin.num_holders += 1
                    lease.pages[number] = twin
        self._touch(page.key for page in lease.pages)

    def release(self, lease: Lease) -> None:
        self._leases.discard(lease)
        for page in lease.pages:
            page.num_holders -= 1

    def pin(self, token_ids: Tokens, max_pages: int) -> int:
        """Protects the prompt's leading full pages while no more than `max_pages` are pinned; says how many."""
        self.unpin(token_ids)
        pinned = self._pinned()
        mine: list[Key] = []
        for key in self._chain(token_ids):
            if key not in self._index or len(pinned | {*mine, key}) > max_pages:
                break
            mine.append(key)
        self._pins[token_ids] = frozenset(mine)
        return len(mine)

    def unpin(self, token_ids: Tokens) -> None:
        self._pins.pop(token_ids, None)

    def forget(self, token_ids: Tokens) -> int:
        """Drops every page that shares the prompt's first page, for all of them hold or follow a part of it."""
        if not token_ids:
            return 0
        first = token_ids[:PAGE_SIZE]
        doomed = [key for key in self._index if key.startswith(first)]
        for key in doomed:
            self._index.pop(key).key = None
        for lease in self._leases:
            if lease.token_ids.startswith(first):
                lease.publishes = False
        self._pins = {prompt: keys for prompt, keys in self._pins.items() if not prompt.startswith(first)}
        return len(doomed)

    def _match(self, token_ids: Tokens) -> list[Page]:
        """The leading pages that are here. The last token is always computed: its logits begin the answer."""
        found: list[Page] = []
        for key in self._chain(token_ids[:-1]):
            page = self._index.get(key)
            if page is None:
                break
            found.append(page)
        self._touch(page.key for page in found)
        return found

    def _chain(self, token_ids: Tokens) -> list[Key]:
        return [token_ids[:end] for end in range(PAGE_SIZE, len(token_ids) + 1, PAGE_SIZE)]

    def _touch(self, keys: Iterable[Key | None]) -> None:
        for key in reversed(list(keys)):
            if key is not None and key in self._index:
                self._index.move_to_end(key)

    def _make_room(self, num_fresh: int) -> bool:
        held, pinned = self._held(), self._pinned()
        num_private = sum(page.key is None for page in held)
        excess = num_private + len(self._index) + num_fresh - self.capacity
        evictable = [key for key, page in self._index.items() if page.num_holders == 0 and key not in pinned]
        if excess > len(evictable):
            return False
        for key in evictable[: max(0, excess)]:
            del self._index[key]
            self.num_evictions += 1
        return True

    def _held(self) -> set[Page]:
        return {page for lease in self._leases for page in lease.pages}

    def _pinned(self) -> set[Key]:
        return {key for keys in self._pins.values() for key in keys if key in self._index}
