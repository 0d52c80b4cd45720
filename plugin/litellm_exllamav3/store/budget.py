"""What must leave the store. Pure, and the same for what is on disk and what still waits in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much of one model's heads, or of its chains, is kept."""

    max_entries: int
    max_entries_per_key: int
    max_bytes: int
    max_age_seconds: float

    @classmethod
    def of_age(cls, seconds: float) -> Budget:
        """Bounds nothing but the age."""
        return cls(max_entries=1 << 31, max_entries_per_key=1 << 31, max_bytes=1 << 62, max_age_seconds=seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelBudgets:
    """Heads and chains have a budget each, so that neither kind crowds out the other.

    A chain's key is its cache fingerprint: each gets its own number of entries, since a user may go back and forth
    between two quantisations of a model.
    """

    heads: Budget
    chains: Budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What is kept, without its content."""

    digest: str
    owner: str
    """Digest of the API key that brought a head; cache fingerprint of a chain. With the digest it names the entry."""
    num_bytes: int
    value: float
    written_at: float


def excess(entries: Iterable[Entry], budget: Budget, now: float, newcomers: Collection[str] = ()) -> list[Entry]:
    """What must go: too old first, then the least valuable of a key that holds too many, then of all.

    `newcomers` go last: a head that has just become hot has little credit, and would never get in.
    """
    gone: list[Entry] = []
    fresh: list[Entry] = []
    for entry in entries:
        if now - entry.written_at > budget.max_age_seconds:
            gone.append(entry)
        else:
            fresh.append(entry)
    fresh.sort(key=lambda entry: (entry.digest in newcomers, entry.value, entry.written_at))
    held = Counter(entry.owner for entry in fresh)
    kept: list[Entry] = []
    for entry in fresh:
        if held[entry.owner] > budget.max_entries_per_key:
            held[entry.owner] -= 1
            gone.append(entry)
        else:
            kept.append(entry)
    count, size = len(kept), sum(entry.num_bytes for entry in kept)
    for entry in kept:
        if count <= budget.max_entries and size <= budget.max_bytes:
            break
        gone.append(entry)
        count -= 1
        size -= entry.num_bytes
    return gone
