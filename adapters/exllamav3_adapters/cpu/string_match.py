"""Comparisons of text and of token ids (`generator/strings.cpp` of the extension)."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

NO_MATCH: Final = -1
PARTIAL_MATCH: Final = -2

_Buffer = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def partial_strings_match(match: _Buffer, offsets: _Buffer, strings: _Buffer) -> int:
    """Looks for the earliest of several strings in a text; all three are raw bytes.

    `match` is the text and `strings` the strings end to end, both UTF-32; `offsets` are the int32 byte offsets
    of each string in `strings`, and of its end. Returns the index (in characters) of the earliest full match,
    `NO_MATCH`, or `PARTIAL_MATCH` where a string that begins before any full match runs off the end of the text,
    so that more text may still complete it. An earlier partial match outweighs a later full one: were it
    completed, the text would have to be cut there.
    """
    text = bytes(match)
    packed = bytes(strings)
    bounds = np.frombuffer(bytes(offsets), dtype=np.int32).tolist()
    earliest_full = earliest_partial = none = len(text) // 4 + 1
    for begin, end in pairwise(bounds):
        needle = packed[begin:end]
        if not needle or end > len(packed):
            continue
        limit = min(earliest_full, earliest_partial)
        full = _find_character(text, needle)
        if 0 <= full < limit:
            earliest_full = limit = full
        partial = _find_unfinished(text, needle)
        if 0 <= partial < limit:
            earliest_partial = partial
    if earliest_partial < earliest_full:
        return PARTIAL_MATCH
    return earliest_full if earliest_full < none else NO_MATCH


def _find_character(text: bytes, needle: bytes) -> int:
    """Character index of `needle`, -1 where it is not. A match of bytes across two characters does not count."""
    at = text.find(needle)
    while at % 4 and at >= 0:
        at = text.find(needle, at + 1)
    return at // 4 if at >= 0 else -1


def _find_unfinished(text: bytes, needle: bytes) -> int:
    """Character index of the longest end of `text` that `needle` begins with but does not end in, or -1."""
    for length in range(min(len(needle) - 4, len(text)), 0, -4):
        if text.endswith(needle[:length]):
            return (len(text) - length) // 4
    return -1


def count_match_tensor(a: torch.Tensor, b: torch.Tensor, max_a: int) -> int:
    """How many leading token ids two int64 tensors of shape (1, n) share, at most `max_a`."""
    length = min(b.shape[-1], max_a, a.numel())
    if length <= 0:
        return 0
    left, right = a.view(-1)[:length].numpy(), b.reshape(-1)[:length].numpy()
    # Most pages differ in their first token: the scheduler compares the prompt with every page there is.
    if left[0] != right[0]:
        return 0
    different = np.flatnonzero(left != right)
    return int(different[0]) if different.size else length
