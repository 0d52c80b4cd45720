"""Which prefixes are replayed, in which order, and what the budget counts."""

from hypothesis import given
from hypothesis import strategies as st

from exllamav3_adapters.contract import Prompt
from litellm_exllamav3.prefix_plan import Prefix, plan_prefixes


def prefix(name: str, *token_ids: int, pin: bool = False) -> Prefix:
    return Prefix(name=name, prompt=Prompt(token_ids=token_ids), pin=pin)


def names(plan_prefixes: tuple[Prefix, ...]) -> str:
    return "".join(item.name for item in plan_prefixes)


def begins_with(longer: Prefix, shorter: Prefix) -> bool:
    tokens = shorter.prompt.token_ids
    return longer.prompt.token_ids[: len(tokens)] == tokens


def test_configured_prefixes_come_first_and_outside_the_budget():
    plan = plan_prefixes([prefix("a", 1, 2, 3, pin=True)], [prefix("b", 7, 8)], max_captured_tokens=2)
    assert names(plan.prefixes) == "ab"


def test_the_order_of_captured_prefixes_is_kept():
    plan = plan_prefixes([], [prefix("c", 3), prefix("a", 1), prefix("b", 2)], max_captured_tokens=99)
    assert names(plan.prefixes) == "cab"


def test_a_prefix_that_another_begins_with_is_replayed_as_part_of_it_and_in_the_earlier_place():
    plan = plan_prefixes(
        [], [prefix("a", 1, 2), prefix("x", 9), prefix("b", 1, 2, 3), prefix("c", 1)], max_captured_tokens=99
    )
    assert names(plan.prefixes) == "bx"
    assert plan.num_folded == 2


def test_a_shared_beginning_counts_once_against_the_budget():
    captured = [prefix("a", 1, 2, 3, 4), prefix("b", 1, 2, 3, 5)]
    assert names(plan_prefixes([], captured, max_captured_tokens=5).prefixes) == "ab"
    assert names(plan_prefixes([], captured, max_captured_tokens=4).prefixes) == "a"


def test_what_a_configured_prefix_brings_along_costs_nothing():
    plan = plan_prefixes([prefix("p", 1, 2, 3, pin=True)], [prefix("a", 1, 2, 3, 4)], max_captured_tokens=1)
    assert names(plan.prefixes) == "pa"


def test_a_prefix_over_the_budget_is_passed_over_and_shorter_ones_get_their_turn():
    plan = plan_prefixes([], [prefix("a", 1), prefix("b", 2, 3, 4), prefix("c", 5)], max_captured_tokens=2)
    assert names(plan.prefixes) == "ac"
    assert (plan.num_over_budget, plan.tokens_over_budget) == (1, 3)


def test_a_captured_prefix_never_takes_the_place_of_a_pinned_one():
    plan = plan_prefixes([prefix("p", 1, pin=True)], [prefix("a", 1, 2)], max_captured_tokens=99)
    assert [(item.name, item.pin) for item in plan.prefixes] == [("p", True), ("a", False)]


def test_a_captured_prefix_within_a_pinned_one_is_folded():
    plan = plan_prefixes([prefix("p", 1, 2, pin=True)], [prefix("a", 1), prefix("b", 1, 2)], max_captured_tokens=0)
    assert names(plan.prefixes) == "p"
    assert plan.num_folded == 2


sequences = st.lists(st.lists(st.integers(0, 2) | st.integers(0, 300), min_size=1, max_size=6), max_size=12)


@given(sequences, sequences)
def test_with_room_for_all_every_prefix_is_replayed_in_one_that_begins_with_it_and_none_twice(configured, captured):
    pins = [prefix("p", *tokens, pin=True) for tokens in configured]
    heads = [prefix("c", *tokens) for tokens in captured]
    plan = plan_prefixes(pins, heads, max_captured_tokens=10_000)
    for pin in pins:
        assert any(kept.pin and begins_with(kept, pin) for kept in plan.prefixes)
    for head in heads:
        assert any(begins_with(kept, head) for kept in plan.prefixes)
    for kept in plan.prefixes:
        assert not any(
            begins_with(other, kept) and (other.pin or not kept.pin) for other in plan.prefixes if other is not kept
        )
    assert len(plan.prefixes) + plan.num_folded == len(pins) + len(heads)


@given(sequences, st.integers(0, 20))
def test_the_tokens_that_captured_prefixes_add_stay_within_the_budget(captured, budget):
    plan = plan_prefixes([], [prefix("c", *tokens) for tokens in captured], max_captured_tokens=budget)
    beginnings = {p.prompt.token_ids[:n] for p in plan.prefixes for n in range(1, len(p.prompt.token_ids) + 1)}
    assert len(beginnings) <= budget
