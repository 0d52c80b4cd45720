"""Token sequences in an order that finds what two of them share without comparing all pairs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from litellm_exllamav3.packed_tokens import TOKEN_BYTES


class PrefixIndex:
    """A sorted set of keys (`pack_tokens`). A lookup compares bytes, in logarithmically many steps.

    In lexicographic order nothing shares more with a key than one of its two neighbours, and what begins with it
    follows it at once.
    """

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._keys = sorted(keys)

    def add(self, key: bytes) -> None:
        insort(self._keys, key)

    def remove(self, key: bytes) -> None:
        del self._keys[bisect_left(self._keys, key)]

    def num_shared(self, key: bytes) -> int:
        """Most leading tokens that any key of the set shares with this one."""
        at = bisect_left(self._keys, key)
        return max((_num_shared(key, other) for other in self._keys[max(0, at - 1) : at + 1]), default=0)

    def extended(self, key: bytes) -> bool:
        """Whether a key of the set begins with this one, or is it."""
        at = bisect_left(self._keys, key)
        return at < len(self._keys) and self._keys[at].startswith(key)

    def beginning(self, key: bytes) -> bytes | None:
        """The key of the set that this one begins with, if no key of the set begins with another."""
        at = bisect_left(self._keys, key)
        before = self._keys[at - 1] if at else None
        return before if before is not None and key.startswith(before) else None


def _num_shared(a: bytes, b: bytes) -> int:
    low, high = 0, min(len(a), len(b)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        # Only what is not known to be equal yet.
        if a[low * TOKEN_BYTES : middle * TOKEN_BYTES] == b[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
