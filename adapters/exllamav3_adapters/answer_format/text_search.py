"""Finds tags in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def find_first(text: str, tags: Sequence[str], *, at_front_only: Collection[str] = ()) -> tuple[int, str | None]:
    """Where the first of the tags stands, and which it is: the longest, where several do. `(len(text), None)`: none,
    or not certain, because one that begins earlier is not complete.

    Those of `at_front_only` count only where nothing but white space is before them.
    """
    found = [(at, tag) for tag in tags if (at := text.find(tag)) >= 0]
    found = [(at, tag) for at, tag in found if tag not in at_front_only or not text[:at].strip()]
    if not found:
        return len(text), None
    at, tag = min(found, key=lambda pair: (pair[0], -len(pair[1])))
    if len(text) - held_length(text, tags) < at:
        return len(text), None
    return at, tag


def held_length(text: str, tags: Sequence[str]) -> int:
    """Length of the longest end of the text that may go on to become one of the tags."""
    longest = max(map(len, tags), default=0)
    for length in range(min(len(text), longest - 1), 0, -1):
        end = text[-length:]
        if any(len(tag) > length and tag.startswith(end) for tag in tags):
            return length
    return 0
