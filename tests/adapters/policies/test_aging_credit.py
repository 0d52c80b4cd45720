"""Credit of shared heads, under a clock of the test's own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from exllamav3_adapters.policies.aging_credit import AgingCredit, PageCredit

HEAD = [b"head-0", b"head-1"]


def credit(**changes: Any) -> AgingCredit:
    options: dict[str, Any] = {"half_life_seconds": 60.0, "hit_cap_pages": 0, "weight_cap": 0.0, "max_entries": 1000}
    return AgingCredit(**(options | changes))


def test_a_prompt_seen_once_has_no_credit() -> None:
    aging = credit()
    aging.claim([*HEAD, b"a"], 0.0)
    assert aging.log_credit(b"head-0") is None
    assert aging.weight(b"head-0", 0.0) == 0.0


def test_pages_are_credited_up_to_where_two_prompts_part() -> None:
    aging = credit()
    aging.claim([*HEAD, b"a", b"a2"], 0.0)
    assert aging.claim([*HEAD, b"b", b"b2"], 0.0) == 2
    assert [aging.weight(page, 0.0) for page in (*HEAD, b"b", b"b2")] == [1.0, 1.0, 0.0, 0.0]


def test_turns_of_one_conversation_earn_nothing() -> None:
    aging = credit()
    chain = [*HEAD, b"turn-0"]
    for turn in range(1, 20):
        aging.claim(chain, float(turn))
        chain = [*chain, f"turn-{turn}".encode()]
    assert all(aging.log_credit(page) is None for page in chain)


def test_short_prompts_on_one_head_share_it() -> None:
    """They part within the page after it, which has no hash."""
    aging = credit()
    aging.claim(HEAD, 0.0)
    assert aging.claim(HEAD, 0.0) == 2
    assert aging.weight(b"head-1", 0.0) == 1.0


def test_a_prompt_that_ends_inside_a_longer_one_shares_its_beginning() -> None:
    aging = credit()
    aging.claim([*HEAD, b"a"], 0.0)
    assert aging.claim(HEAD, 0.0) == 2


def test_credit_halves_every_half_life() -> None:
    aging = credit()
    aging.claim([*HEAD, b"a"], 0.0)
    aging.claim([*HEAD, b"b"], 0.0)
    assert aging.weight(b"head-0", 60.0) == pytest.approx(0.5)
    assert aging.weight(b"head-0", 180.0) == pytest.approx(0.125)


def test_credits_add_up_decayed() -> None:
    aging = credit()
    for seconds, tail in ((0.0, b"a"), (0.0, b"b"), (60.0, b"c"), (120.0, b"d")):
        aging.claim([*HEAD, tail], seconds)
    assert aging.weight(b"head-0", 120.0) == pytest.approx(0.25 + 0.5 + 1.0)


def test_time_alone_never_changes_what_orders_the_pages() -> None:
    aging = credit()
    aging.claim([b"x", b"a"], 0.0)
    aging.claim([b"x", b"b"], 0.0)
    before = aging.log_credit(b"x")
    aging.claim([b"y", b"a"], 1e6)
    assert aging.log_credit(b"x") == before


def test_years_of_credit_stay_finite() -> None:
    aging = credit()
    for day in range(4000):
        aging.claim([*HEAD, b"%d" % day], day * 86400.0)
    assert math.isfinite(aging.log_credit(b"head-0") or math.nan)
    assert aging.weight(b"head-0", 4000 * 86400.0) < 1.0


def test_only_the_leading_pages_of_a_prompt_are_credited() -> None:
    aging = credit(hit_cap_pages=1)
    aging.claim([*HEAD, b"a"], 0.0)
    aging.claim([*HEAD, b"b"], 0.0)
    assert aging.log_credit(b"head-0") is None, "they part behind the cap"
    aging.claim([b"head-0", b"other"], 0.0)
    assert aging.weight(b"head-0", 0.0) == 1.0


def test_the_weight_is_capped() -> None:
    aging = credit(weight_cap=4.0)
    for number in range(50):
        aging.claim([*HEAD, b"%d" % number], 0.0)
    assert aging.weight(b"head-0", 0.0) == pytest.approx(4.0)


def test_the_table_is_bounded_and_forgets_ends_before_beginnings() -> None:
    aging = credit(max_entries=3)
    aging.claim([b"0", b"1", b"2", b"3", b"4"], 0.0)
    aging.claim([b"0", b"1", b"2", b"x"], 0.0)
    assert len(aging) == 3
    aging.claim([b"new"], 0.0)
    assert aging.log_credit(b"0") is not None
    assert aging.log_credit(b"2") is None


def test_a_forgotten_page_has_no_credit() -> None:
    aging = credit()
    aging.claim([*HEAD, b"a"], 0.0)
    aging.claim([*HEAD, b"b"], 0.0)
    assert aging.forget([b"head-1", b"unknown"]) == {b"head-1", b"a", b"b"}
    assert aging.log_credit(b"head-1") is None
    assert aging.weight(b"head-0", 0.0) == 1.0


def test_what_follows_a_page_is_forgotten_with_it_although_another_prompt_came_last() -> None:
    aging = credit()
    for tail in (b"a", b"b", b"c"):
        aging.claim([*HEAD, tail, tail * 2], 0.0)
    aging.claim([b"other"], 0.0)
    assert len(aging.forget([b"head-0"])) == 8
    assert len(aging) == 1


def test_credit_comes_back_decayed_by_the_time_that_passed() -> None:
    aging = credit()
    aging.claim([*HEAD, b"a"], 500.0)
    aging.claim([*HEAD, b"b"], 500.0)
    later = credit()
    for page in HEAD:
        kept = aging.page_credit(page, 500.0)
        assert kept is not None
        later.restore(kept, 3.0, elapsed_seconds=120.0)
    assert later.weight(b"head-1", 3.0) == pytest.approx(0.25)
    assert later.forget([b"head-0"]) == set(HEAD)


def test_a_page_without_credit_is_not_kept() -> None:
    aging = credit()
    aging.claim(HEAD, 0.0)
    assert aging.page_credit(b"head-0", 0.0) is None
    assert aging.page_credit(b"unknown", 0.0) is None


def test_credit_that_comes_back_is_capped_and_does_not_replace_newer_credit() -> None:
    aging = credit(weight_cap=2.0)
    aging.claim([*HEAD, b"a"], 0.0)
    aging.claim([*HEAD, b"b"], 0.0)
    for page in (b"head-0", b"old"):
        aging.restore(PageCredit(page, None, 50.0), 0.0, elapsed_seconds=0.0)
    assert aging.weight(b"head-0", 0.0) == 1.0
    assert aging.weight(b"old", 0.0) == pytest.approx(2.0)


def test_a_clock_that_went_back_does_not_add_credit() -> None:
    later = credit()
    later.restore(PageCredit(b"head-0", None, 2.0), 3.0, elapsed_seconds=-1e9)
    assert later.weight(b"head-0", 3.0) == pytest.approx(2.0)
