"""Stop strings and shared tokens, against what the extension's own loop would find."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from exllamav3_adapters.cpu.string_match import count_match_tensor, partial_strings_match

letters = st.text(alphabet="abé日👍", max_size=8)


def match(text: str, needles: list[str]) -> int:
    packed = [needle.encode("utf-32-le") for needle in needles]
    offsets = np.cumsum([0, *map(len, packed)]).astype(np.int32)
    as_bytes = [np.frombuffer(data, np.uint8) for data in (text.encode("utf-32-le"), offsets.tobytes())]
    return partial_strings_match(*as_bytes, np.frombuffer(b"".join(packed), np.uint8))


def match_by_loop(text: str, needles: list[str]) -> int:
    """The loop of strings.cpp: only a start before the best so far can change the outcome."""
    full = partial = len(text) + 1
    for needle in filter(None, needles):
        for start in range(min(len(text), full, partial)):
            if text.startswith(needle, start):
                full = start
                break
            if needle.startswith(text[start:]):
                partial = start
                break
    if partial < full:
        return -2
    return full if full <= len(text) else -1


@given(letters, st.lists(letters, max_size=4))
def test_the_earliest_match_is_found(text: str, needles: list[str]) -> None:
    assert match(text, needles) == match_by_loop(text, needles)


def test_a_match_across_two_characters_is_none() -> None:
    # In UTF-32 these are 00 01 00 00, 00 00 00 00 and 01 00 00 00: the last is in the first two, one byte in.
    assert match("\u0100\u0000", ["\u0001"]) == -1


def test_an_unfinished_match_before_a_full_one_is_waited_for() -> None:
    assert match("xab", ["abc", "b"]) == -2
    assert match("xabd", ["abc", "b"]) == 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.lists(st.integers(0, 3), max_size=9), st.integers(0, 9))
def test_shared_tokens_are_counted_from_the_front(a: list[int], b: list[int], limit: int) -> None:
    count = count_match_tensor(torch.tensor([a]), torch.tensor([b], dtype=torch.long).view(1, -1), limit)
    shared = 0
    while shared < min(limit, len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    assert count == shared
