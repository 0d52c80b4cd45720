from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from litellm_exllamav3.store.budget import Budget, Entry, excess

NOW = 1000.0
BUDGET = Budget(max_entries=3, max_entries_per_key=2, max_bytes=100, max_age_seconds=50)


def entry(digest: str, owner: str = "key-1", num_bytes: int = 1, value: float = 0, age: float = 0) -> Entry:
    return Entry(digest=digest, owner=owner, num_bytes=num_bytes, value=value, written_at=NOW - age)


def gone(entries: list[Entry], newcomers: Collection[str] = ()) -> list[str]:
    return [entry.digest for entry in excess(entries, BUDGET, NOW, newcomers)]


def test_what_fits_stays() -> None:
    assert gone([entry("a"), entry("b", "key-2"), entry("c", "key-2")]) == []


def test_what_is_too_old_goes_whatever_its_value() -> None:
    assert gone([entry("a", value=9, age=51), entry("b", age=50)]) == ["a"]


def test_the_least_valuable_goes() -> None:
    entries = [entry(digest, owner=digest, value=value) for digest, value in (("a", 3), ("b", 1), ("c", 2), ("d", 4))]
    assert gone(entries) == ["b"]


def test_of_equal_value_the_longest_unused_goes() -> None:
    entries = [entry(digest, owner=digest, age=age) for digest, age in (("a", 3), ("b", 9), ("c", 2), ("d", 4))]
    assert gone(entries) == ["b"]


def test_a_key_over_its_share_pays_itself() -> None:
    entries = [entry("a", value=5), entry("b", value=6), entry("c", value=7), entry("d", "key-2", value=1)]
    assert gone(entries) == ["a"]


def test_bytes_count() -> None:
    entries = [entry("a", num_bytes=60, value=1), entry("b", "key-2", num_bytes=60, value=2)]
    assert gone(entries) == ["a"]


def test_newcomers_go_last() -> None:
    entries = [entry(digest, owner=digest, value=value) for digest, value in (("a", 3), ("b", 4), ("c", 5), ("new", 1))]
    assert gone(entries, {"new"}) == ["a"]


@given(
    entries=st.lists(
        st.builds(
            Entry,
            digest=st.uuids().map(str),
            owner=st.sampled_from(["key-1", "key-2", "key-3"]),
            num_bytes=st.integers(1, 80),
            value=st.floats(-10, 10),
            written_at=st.floats(NOW - 100, NOW),
        ),
        max_size=20,
    )
)
def test_what_is_left_fits(entries: list[Entry]) -> None:
    digests = gone(entries)
    left = [entry for entry in entries if entry.digest not in digests]
    assert len(digests) == len(set(digests)) == len(entries) - len(left)
    assert gone(left) == []
    assert len(left) <= BUDGET.max_entries
    assert sum(entry.num_bytes for entry in left) <= BUDGET.max_bytes
