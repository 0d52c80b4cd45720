"""Which heads are hot. Pure: the clock is an argument, nothing here does I/O or takes a lock.

A count that halves every `h` seconds is `sum(2**((t_i - now)/h))` over its hits `t_i`. What is kept of it is
`s = h*log2(sum(2**(t_i/h)))`, in seconds: it changes only with a hit, never with time, and orders heads as their
counts do. The count at any time is `2**((s - now)/h)`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

NO_CREDIT = -math.inf

_SLACK = 0.5 + 1e-6
"""Two hits one half-life apart count 1.5 together, and shall be two: a count is reached within half a hit, and within
what is lost by keeping it as seconds since the epoch."""
_OWNER_CAP = 4.0
"""One API key's hits can make a head due so many times over, and no more."""
_OWNERS_PER_HEAD = 16
_VICTIM_CANDIDATES = 32
"""The head to drop is sought among so many that were not seen for longest: a hit must not walk the whole table."""


def decayed_count(log_count: float, now: float, half_life: float) -> float:
    """The count at `now`; both times and the half-life in seconds."""
    # The bound only matters where the clock has stepped back since.
    return math.exp2(min((log_count - now) / half_life, 64.0))


def add_hit(log_count: float, at: float, half_life: float, weight: float = 1.0) -> float:
    """The count with one more hit. Hits may come in any order."""
    hit = at + half_life * math.log2(weight)
    late, early = max(log_count, hit), min(log_count, hit)
    return late + half_life * math.log2(1 + math.exp2((early - late) / half_life))


@dataclass(frozen=True, kw_only=True, slots=True)
class CreditRow:
    """What one API key gave one head: the part of the table that is written down."""

    digest: str
    owner: str
    conversations: float
    """Log count of conversation starts."""
    requests: float
    """Log count of all requests."""
    seen_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CreditPolicy:
    """When a head is due, and how much one key may hold."""

    half_life_seconds: float
    min_conversations: int
    min_requests: int
    max_heads: int = 4096
    max_heads_per_owner: int = 1024


@dataclass(slots=True)
class _HeadCredit:
    owner: str
    """The key that brought the head in, and whose share of the table it takes."""
    given: dict[str, CreditRow] = field(default_factory=dict)


class CreditTable:
    """The heads of one model. Bounded; where it is full the coldest of the longest unseen heads goes."""

    def __init__(self, policy: CreditPolicy) -> None:
        self._policy = policy
        self._heads: OrderedDict[str, _HeadCredit] = OrderedDict()
        self._brought: dict[str, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def __contains__(self, digest: str) -> bool:
        return digest in self._heads

    def observe(self, digest: str, owner: str, now: float, *, starts_conversation: bool) -> CreditRow:
        """Counts one request. Returns what its key has given the head so far."""
        head = self._admit(digest, owner)
        before = head.given.get(owner)
        conversations, requests = (before.conversations, before.requests) if before else (NO_CREDIT, NO_CREDIT)
        if starts_conversation:
            conversations = self._add(conversations, now, self._policy.min_conversations)
        requests = self._add(requests, now, self._policy.min_requests)
        row = CreditRow(digest=digest, owner=owner, conversations=conversations, requests=requests, seen_at=now)
        self._give(head, row)
        return row

    def load(self, rows: Iterable[CreditRow], now: float) -> None:
        """Takes up what was written down. A hit that lies in the future, by a clock since corrected, counts as now."""
        for row in sorted(rows, key=lambda row: row.seen_at):
            kept = CreditRow(
                digest=row.digest,
                owner=row.owner,
                conversations=min(row.conversations, self._most(now, self._policy.min_conversations)),
                requests=min(row.requests, self._most(now, self._policy.min_requests)),
                seen_at=min(row.seen_at, now),
            )
            self._give(self._admit(row.digest, row.owner), kept)

    def is_due(self, digest: str, now: float) -> bool:
        """Whether the head was seen often enough, and lately enough, to be worth keeping."""
        head = self._heads.get(digest)
        if head is None:
            return False
        h = self._policy.half_life_seconds
        conversations = requests = 0.0
        for row in head.given.values():
            conversations += decayed_count(row.conversations, now, h)
            requests += decayed_count(row.requests, now, h)
        return (
            conversations >= self._policy.min_conversations - _SLACK or requests >= self._policy.min_requests - _SLACK
        )

    def value(self, digest: str) -> float:
        """How many times over the head is due, as a log count: hotter heads have more. `NO_CREDIT` if unknown."""
        head = self._heads.get(digest)
        return NO_CREDIT if head is None else self._value(head)

    def rows(self) -> list[CreditRow]:
        """All that was given, for a store that has lost it."""
        return [row for head in self._heads.values() for row in head.given.values()]

    def forget(self, digest: str) -> None:
        """Drops the head's credit, if it has any."""
        head = self._heads.pop(digest, None)
        if head is None:
            return
        brought = self._brought[head.owner]
        del brought[digest]
        if not brought:
            del self._brought[head.owner]

    def _most(self, now: float, due_at: int) -> float:
        return now + self._policy.half_life_seconds * math.log2(_OWNER_CAP * max(due_at, 1))

    def _add(self, log_count: float, now: float, due_at: int) -> float:
        h = self._policy.half_life_seconds
        log_count = min(log_count, self._most(now, due_at))
        room = _OWNER_CAP * max(due_at, 1) - decayed_count(log_count, now, h)
        return add_hit(log_count, now, h, min(1.0, room)) if room > 0 else log_count

    def _value(self, head: _HeadCredit) -> float:
        h = self._policy.half_life_seconds
        value = NO_CREDIT
        for due_at, log_counts in (
            (self._policy.min_conversations, [row.conversations for row in head.given.values()]),
            (self._policy.min_requests, [row.requests for row in head.given.values()]),
        ):
            top = max(log_counts)
            if top > NO_CREDIT:
                total = top + h * math.log2(sum(math.exp2((count - top) / h) for count in log_counts))
                value = max(value, total - h * math.log2(max(due_at, 1)))
        return value

    def _give(self, head: _HeadCredit, row: CreditRow) -> None:
        head.given[row.owner] = row
        if len(head.given) > _OWNERS_PER_HEAD:
            others = (owner for owner in head.given if owner != row.owner)
            del head.given[min(others, key=lambda owner: head.given[owner].requests)]

    def _admit(self, digest: str, owner: str) -> _HeadCredit:
        head = self._heads.get(digest)
        if head is not None:
            self._heads.move_to_end(digest)
            self._brought[head.owner].move_to_end(digest)
            return head
        brought = self._brought.get(owner)
        if brought is not None and len(brought) >= self._policy.max_heads_per_owner:
            self.forget(self._coldest(brought))
        elif len(self._heads) >= self._policy.max_heads:
            self.forget(self._coldest(self._heads))
        head = self._heads[digest] = _HeadCredit(owner)
        self._brought.setdefault(owner, OrderedDict())[digest] = None
        return head

    def _coldest(self, digests: Iterable[str]) -> str:
        return min(islice(digests, _VICTIM_CANDIDATES), key=self.value)
