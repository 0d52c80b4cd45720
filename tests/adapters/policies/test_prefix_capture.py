"""Captured prefixes, under a clock and with credits of the test's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from exllamav3_adapters.policies.aging_credit import AgingCredit
from exllamav3_adapters.policies.prefix_capture import REWRITE_SECONDS, CapturedPrefix, PrefixCapture

PAGE = 4
HOUR = 3600.0


def capture(**changes: Any) -> PrefixCapture:
    options: dict[str, Any] = {"page_tokens": PAGE, "min_tokens": PAGE, "max_tokens": 8 * PAGE, "max_entries": 8}
    return PrefixCapture(**(options | changes))


def tokens_of(chain: str) -> tuple[int, ...]:
    """A letter is a page, and the prompt ends in the page after the last."""
    return (*(ord(letter) for letter in chain for _ in range(PAGE)), 0, 0)


def hashes_of(chain: str) -> list[bytes]:
    return [chain[: n + 1].encode() for n in range(len(chain))]


def claim(captures: PrefixCapture, chain: str, credit: Mapping[str, float], seconds: float = 0.0) -> None:
    """`credit` is by the chain that ends in the page."""
    captures.claim(
        hashes_of(chain),
        tokens_of(chain),
        lambda page: credit.get(page.decode(), 0.0),
        seconds=seconds,
        epoch_seconds=1000.0 + seconds,
    )


def recorded(captures: PrefixCapture, after: float = 0.0) -> list[str]:
    """Chains, most recently written first."""
    return [one.chain[-1].decode() for one in captures.written_after(after)]


def the_one(captures: PrefixCapture) -> CapturedPrefix:
    (one,) = captures.written_after(0.0)
    return one


def test_the_deepest_page_of_enough_credit_ends_the_prefix() -> None:
    captures = capture()
    claim(captures, "headxy", {"h": 3.0, "he": 3.0, "hea": 2.0, "head": 1.5, "headx": 1.4})
    one = the_one(captures)
    assert one.token_ids == tokens_of("head")[:-2]
    assert one.credit == 1.5
    assert one.written_at == 1000.0


def test_a_prompt_without_credit_is_not_recorded() -> None:
    captures = capture()
    claim(captures, "headxy", {"h": 1.4})
    claim(captures, "", {})
    assert len(captures) == 0


def test_prompts_must_part_at_its_end_twice_within_a_half_life() -> None:
    def after_parting(times: Sequence[float]) -> list[str]:
        credit = AgingCredit(half_life_seconds=HOUR, hit_cap_pages=0, weight_cap=0.0, max_entries=100)
        captures = capture()
        for seconds, tail in zip(times, "abcd", strict=False):
            chain = f"head{tail}"
            credit.claim(hashes_of(chain), seconds)
            captures.claim(
                hashes_of(chain),
                tokens_of(chain),
                lambda page, now=seconds: credit.weight(page, now),
                seconds=seconds,
                epoch_seconds=seconds,
            )
        return recorded(captures, -1.0)

    assert after_parting([0.0, 0.0]) == []
    assert after_parting([0.0, 0.0, 0.9 * HOUR]) == ["head"]
    assert after_parting([0.0, 0.0, 1.5 * HOUR]) == []


def test_heads_that_differ_only_at_their_end_are_captured_to_what_they_share() -> None:
    credit = AgingCredit(half_life_seconds=HOUR, hit_cap_pages=0, weight_cap=0.0, max_entries=100)
    captures = capture()
    for number in range(6):
        chain = f"head{number}{'xyzuvw'[number]}"
        credit.claim(hashes_of(chain), 0.0)
        captures.claim(
            hashes_of(chain), tokens_of(chain), lambda page: credit.weight(page, 0.0), seconds=0.0, epoch_seconds=0.0
        )
    assert recorded(captures) == ["head"]


def test_a_prefix_that_is_too_short_is_not_recorded() -> None:
    captures = capture(min_tokens=3 * PAGE)
    claim(captures, "ab", {"ab": 9.0})
    claim(captures, "abcd", {"abc": 9.0})
    assert recorded(captures) == ["abc"]


def test_a_prefix_that_is_too_long_is_cut_at_the_last_whole_page() -> None:
    captures = capture(max_tokens=3 * PAGE + 3)
    claim(captures, "abcdef", {"abc": 5.0, "abcde": 4.0})
    one = the_one(captures)
    assert one.token_ids == tokens_of("abc")[:-2]
    assert one.credit == 5.0


def test_less_than_a_page_can_never_be_captured() -> None:
    captures = capture(min_tokens=1, max_tokens=PAGE - 1)
    claim(captures, "abc", {"ab": 9.0})
    assert len(captures) == 0


def test_a_longer_prefix_replaces_its_beginnings() -> None:
    captures = capture()
    claim(captures, "ab", {"a": 2.0})
    claim(captures, "x", {"x": 2.0})
    claim(captures, "abcd", {"abc": 2.0}, seconds=1.0)
    assert recorded(captures) == ["abc", "x"]


def test_a_beginning_of_what_was_written_lately_is_not_written_beside_it() -> None:
    captures = capture()
    claim(captures, "abcd", {"abc": 2.0})
    claim(captures, "abx", {"ab": 3.0}, seconds=REWRITE_SECONDS - 1)
    assert recorded(captures) == ["abc"]


def test_a_beginning_that_is_still_hit_outlives_the_longer_one_that_is_not() -> None:
    captures = capture(max_entries=2)
    claim(captures, "abcd", {"abc": 2.0})
    claim(captures, "abx", {"ab": 3.0}, seconds=REWRITE_SECONDS)
    assert recorded(captures) == ["ab", "abc"]
    claim(captures, "z", {"z": 2.0}, seconds=REWRITE_SECONDS + 1)
    assert recorded(captures) == ["z", "ab"]


def test_a_prefix_that_is_hit_all_the_time_is_written_every_few_minutes() -> None:
    captures = capture()
    for seconds in range(int(3 * REWRITE_SECONDS)):
        claim(captures, "ab", {"a": 2.0 + seconds}, seconds=float(seconds))
    one = the_one(captures)
    assert one.written_at == 1000.0 + 2 * REWRITE_SECONDS
    assert one.credit == 2.0 + 2 * REWRITE_SECONDS


def test_only_what_is_new_is_listed_to_those_who_have_the_rest() -> None:
    captures = capture()
    claim(captures, "ab", {"a": 2.0})
    (seen,) = captures.written_after(0.0)
    claim(captures, "xy", {"x": 2.0})
    assert recorded(captures, seen.written_at) == ["x"], "although the clock has not moved"
    claim(captures, "ab", {"a": 2.0}, seconds=REWRITE_SECONDS)
    assert recorded(captures, 1000.0 + REWRITE_SECONDS - 1) == ["a"]


def test_a_clock_that_is_set_back_hides_nothing() -> None:
    captures = capture()
    claim(captures, "ab", {"a": 2.0})
    seen = the_one(captures).written_at
    captures.claim(hashes_of("xy"), tokens_of("xy"), lambda page: 2.0, seconds=5.0, epoch_seconds=3.0)
    assert recorded(captures, seen) == ["xy"]


def test_past_the_most_entries_the_one_written_longest_ago_goes() -> None:
    captures = capture(max_entries=2)
    claim(captures, "a", {"a": 2.0})
    claim(captures, "b", {"b": 2.0}, seconds=1.0)
    claim(captures, "a", {"a": 2.0}, seconds=REWRITE_SECONDS)
    claim(captures, "c", {"c": 2.0}, seconds=REWRITE_SECONDS + 1)
    assert recorded(captures) == ["c", "a"]


@pytest.mark.parametrize(("forgotten", "left"), [("ab", ["x"]), ("azz", ["x"]), ("a", ["x"]), ("q", ["x", "abc"])])
def test_forgetting_drops_all_that_shares_a_page(forgotten: str, left: list[str]) -> None:
    captures = capture()
    claim(captures, "abcd", {"abc": 2.0})
    claim(captures, "x", {"x": 2.0}, seconds=1.0)
    captures.forget(tokens_of(forgotten))
    assert recorded(captures) == left


def test_forgetting_less_than_a_page_drops_all_that_begins_with_it() -> None:
    captures = capture()
    claim(captures, "abcd", {"abc": 2.0})
    captures.forget(())
    assert len(captures) == 1
    captures.forget(tokens_of("a")[:2])
    assert len(captures) == 0


def test_as_the_contract_has_it() -> None:
    captures = capture()
    claim(captures, "ab", {"a": 2.0})
    stored = the_one(captures).stored("fingerprint")
    assert (stored.digest, stored.cache_fingerprint) == (b"a".hex(), "fingerprint")
    assert (stored.token_ids, stored.credit) == (tokens_of("a")[:PAGE], 2.0)
