"""Token ids as bytes that can be compared, searched and stored: unsigned, four bytes each, little-endian."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

TOKEN_BYTES = 4
_TYPE = "I"
assert array(_TYPE).itemsize == TOKEN_BYTES


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """One sequence is a prefix of another exactly where its bytes are. Raises OverflowError beyond 32 bits."""
    # Of a tuple, since an array would take bytes, which are a sequence of numbers too, for packed ones.
    return _little_endian(array(_TYPE, tuple(token_ids))).tobytes()


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """Raises ValueError where the bytes are no whole number of tokens."""
    return tuple(_little_endian(array(_TYPE, packed)))


def holds_tokens(packed: bytes, sought: bytes) -> bool:
    """Whether the sought tokens stand anywhere in the packed ones."""
    at = packed.find(sought)
    while at > 0 and at % TOKEN_BYTES:
        at = packed.find(sought, at + 1)
    return at >= 0


def _little_endian(tokens: array[int]) -> array[int]:
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
