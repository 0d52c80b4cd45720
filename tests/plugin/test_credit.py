from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_exllamav3.credit import NO_CREDIT, CreditPolicy, CreditTable, add_hit, decayed_count

H = 3600.0
T = 1_800_000_000.0
POLICY = CreditPolicy(half_life_seconds=H, min_conversations=2, min_requests=10)


def table(**changes: int) -> CreditTable:
    return CreditTable(replace(POLICY, **changes))


def start(credit: CreditTable, digest: str, now: float = T, owner: str = "key-1") -> None:
    credit.observe(digest, owner, now, starts_conversation=True)


def turn(credit: CreditTable, digest: str, now: float = T, owner: str = "key-1") -> None:
    credit.observe(digest, owner, now, starts_conversation=False)


TIMES = st.lists(st.floats(T, T + 20 * H), min_size=1, max_size=30)


@given(times=TIMES)
def test_the_log_form_is_the_decayed_count(times: list[float]) -> None:
    log_count = NO_CREDIT
    for at in times:
        log_count = add_hit(log_count, at, H)
    now = T + 20 * H
    assert decayed_count(log_count, now, H) == pytest.approx(sum(2 ** ((at - now) / H) for at in times), rel=1e-6)


@given(times=TIMES)
def test_hits_may_come_in_any_order(times: list[float]) -> None:
    forward = backward = NO_CREDIT
    for at in times:
        forward = add_hit(forward, at, H)
    for at in reversed(times):
        backward = add_hit(backward, at, H)
    assert forward == pytest.approx(backward, abs=1e-3)


def test_a_count_halves_in_a_half_life() -> None:
    log_count = add_hit(add_hit(NO_CREDIT, T, H), T, H)
    assert decayed_count(log_count, T, H) == pytest.approx(2)
    assert decayed_count(log_count, T + H, H) == pytest.approx(1)


def test_nothing_counted_is_no_count() -> None:
    assert decayed_count(NO_CREDIT, T, H) == 0


def test_a_head_is_due_at_its_second_conversation() -> None:
    credit = table()
    start(credit, "a")
    assert not credit.is_due("a", T)
    start(credit, "a", T + 60)
    assert credit.is_due("a", T + 60)


def test_two_conversations_one_half_life_apart_are_two() -> None:
    credit = table()
    start(credit, "a")
    start(credit, "a", T + H)
    assert credit.is_due("a", T + H)


def test_two_conversations_further_apart_are_not_two() -> None:
    credit = table()
    start(credit, "a")
    start(credit, "a", T + 1.1 * H)
    assert not credit.is_due("a", T + 1.1 * H)


def test_a_head_is_due_at_its_tenth_request() -> None:
    credit = table()
    for _ in range(9):
        turn(credit, "a")
    assert not credit.is_due("a", T)
    turn(credit, "a")
    assert credit.is_due("a", T)


def test_a_head_ceases_to_be_due() -> None:
    credit = table()
    start(credit, "a")
    start(credit, "a")
    assert not credit.is_due("a", T + 2 * H)


def test_conversations_of_several_keys_add_up() -> None:
    credit = table()
    start(credit, "a", owner="key-1")
    start(credit, "a", owner="key-2")
    assert credit.is_due("a", T)


def test_an_unknown_head_is_never_due() -> None:
    assert not table().is_due("a", T)
    assert table().value("a") == NO_CREDIT


def test_what_one_key_can_give_a_head_is_bounded() -> None:
    hammered, liked = table(), table()
    for _ in range(1000):
        start(hammered, "a", owner="key-1")
    for owner in range(8):
        start(liked, "a", owner=f"key-{owner}")
        start(liked, "a", owner=f"key-{owner}")
    assert decayed_count(hammered.value("a"), T, H) == pytest.approx(4)
    assert liked.value("a") > hammered.value("a")


def test_a_bounded_key_gives_again_what_has_decayed() -> None:
    credit = table()
    for now in (T, T + H):
        for _ in range(1000):
            start(credit, "a", now)
        assert decayed_count(credit.value("a"), now, H) == pytest.approx(4)


def test_value_orders_heads_by_how_hot_they_are() -> None:
    credit = table()
    for _ in range(3):
        start(credit, "hot")
    start(credit, "warm")
    turn(credit, "cold")
    start(credit, "old", T - 5 * H)
    assert credit.value("hot") > credit.value("warm") > credit.value("cold") > credit.value("old")


def test_a_full_table_drops_a_cold_head() -> None:
    credit = table(max_heads=3)
    start(credit, "hot")
    start(credit, "hot")
    start(credit, "cold")
    start(credit, "warm", owner="key-2")
    start(credit, "new", T + 1, owner="key-3")
    assert [digest in credit for digest in ("hot", "cold", "warm", "new")] == [True, False, True, True]


@pytest.mark.parametrize("bound", ["max_heads", "max_heads_per_owner"])
def test_a_head_just_seen_is_not_dropped_though_it_be_the_coldest(bound: str) -> None:
    credit = table(**{bound: 40})
    turn(credit, "cold")
    for number in range(39):
        start(credit, f"{number}")
    turn(credit, "cold")
    start(credit, "new")
    assert "cold" in credit
    assert len(credit) == 40


def test_one_key_cannot_crowd_the_table() -> None:
    credit = table(max_heads=100, max_heads_per_owner=10)
    start(credit, "mine", owner="key-1")
    for number in range(1000):
        start(credit, f"flood {number}", T + number, owner="key-2")
    assert "mine" in credit
    assert len(credit) == 11


def test_a_head_used_by_its_key_outlives_that_key_s_flood() -> None:
    credit = table(max_heads_per_owner=10)
    start(credit, "agent")
    start(credit, "agent")
    for number in range(1000):
        start(credit, f"one-off {number}")
    assert credit.is_due("agent", T)


def test_many_keys_of_one_head_are_bounded() -> None:
    credit = table()
    for number in range(1000):
        start(credit, "a", T + number, owner=f"key-{number}")
    assert len(credit.rows()) == 16


def test_a_forgotten_head_starts_again() -> None:
    credit = table()
    start(credit, "a")
    credit.forget("a")
    credit.forget("a")
    assert ("a" in credit, len(credit), credit.rows()) == (False, 0, [])
    start(credit, "a")
    assert not credit.is_due("a", T)


def test_a_table_is_what_its_rows_make() -> None:
    credit, copy = table(), table()
    for number in range(50):
        start(credit, f"{number % 7}", T + number, owner=f"key-{number % 3}")
        turn(credit, f"{number % 5}", T + number, owner=f"key-{number % 2}")
    copy.load(credit.rows(), T + 50)
    digests = [str(number) for number in range(7)]
    assert [copy.value(digest) for digest in digests] == [credit.value(digest) for digest in digests]
    assert [copy.is_due(digest, T + 50) for digest in digests] == [True] * 7


def test_credit_from_a_clock_that_was_ahead_counts_as_of_now() -> None:
    ahead, credit = table(), table()
    start(ahead, "a", T + 1000 * H)
    credit.load(ahead.rows(), T)
    assert decayed_count(credit.value("a"), T, H) <= 4.000001
    assert not credit.is_due("a", T + 10 * H)


def test_a_clock_that_steps_back_overflows_nothing() -> None:
    credit = table()
    start(credit, "a", T + 1e9)
    start(credit, "b", T + 1e9, owner="key-2")
    start(credit, "a", T)
    start(credit, "b", T)
    assert not credit.is_due("a", T + 10 * H)
    assert credit.is_due("b", T)
    assert math.isfinite(credit.value("b"))
