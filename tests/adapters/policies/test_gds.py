"""Greedy-Dual-Size, and next to the same computed from nothing after every step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from exllamav3_adapters.policies.gds import GreedyDualSize
from exllamav3_adapters.policies.prefill_cost import PrefillCost

COST = PrefillCost(1.0, 1 / 61)


def gds() -> GreedyDualSize[str]:
    return GreedyDualSize(COST)


def cost(start: int, end: int) -> float:
    return COST.normalised().between(start, end)


def test_nothing_to_evict_is_none() -> None:
    assert gds().victim() is None


def test_a_checkpoint_costs_the_replay_from_the_deepest_one_before_it() -> None:
    order = gds()
    order.add("b", position=8_000, size=1, path=["a"])
    assert order.replay_cost("b") == cost(0, 8_000)
    order.add("c", position=9_000, size=1, path=["a", "b"])
    assert order.replay_cost("c") == cost(8_000, 9_000)


def test_deep_tokens_cost_more_than_early_ones() -> None:
    order = gds()
    order.add("early", position=10_000, size=1, path=[])
    order.add("anchor", position=100_000, size=1, path=[])
    order.add("deep", position=109_900, size=1, path=["anchor"])
    assert order.victim() == "early"


def test_of_two_that_cost_the_same_the_larger_goes_first() -> None:
    order = gds()
    order.add("small", position=1_000, size=10, path=[])
    order.add("large", position=1_000, size=11, path=[])
    assert order.victim() == "large"


def test_one_that_leaves_makes_those_after_it_dearer() -> None:
    order = gds()
    order.add("a", position=4_000, size=1, path=[])
    order.add("b", position=5_000, size=1, path=["a"])
    order.add("branch", position=6_000, size=1, path=["a", "x"])
    order.remove("a")
    assert order.replay_cost("b") == cost(0, 5_000)
    assert order.replay_cost("branch") == cost(0, 6_000)


def test_one_that_arrives_makes_those_after_it_cheaper_and_no_others() -> None:
    order = gds()
    order.add("b", position=5_000, size=1, path=["head", "a"])
    order.add("other", position=5_000, size=1, path=["head", "x"])
    order.add("a", position=4_000, size=1, path=["head"])
    assert order.replay_cost("b") == cost(4_000, 5_000)
    assert order.replay_cost("other") == cost(0, 5_000)
    order.add("head", position=1_000, size=1, path=[])
    assert order.replay_cost("a") == cost(1_000, 4_000)
    assert order.replay_cost("b") == cost(4_000, 5_000)
    assert order.replay_cost("other") == cost(1_000, 5_000)


def test_one_that_returns_finds_its_chain_again() -> None:
    order = gds()
    order.add("a", position=4_000, size=1, path=[])
    order.add("b", position=5_000, size=1, path=["a"])
    order.add("c", position=6_000, size=1, path=["a", "b"])
    order.remove("b")
    order.remove("a")
    order.add("b", position=5_000, size=1, path=["a"])
    order.add("a", position=4_000, size=1, path=[])
    assert [order.replay_cost(key) for key in "abc"] == [cost(0, 4_000), cost(4_000, 5_000), cost(5_000, 6_000)]


def test_a_later_path_shows_what_lies_between() -> None:
    order = gds()
    order.add("c", position=6_000, size=1, path=[])
    order.add("b", position=5_000, size=1, path=[])
    assert order.replay_cost("c") == cost(0, 6_000), "nothing said that b is on its chain"
    order.add("d", position=7_000, size=1, path=["b", "c"])
    assert order.replay_cost("c") == cost(5_000, 6_000)


def test_a_path_that_names_less_than_is_known_unlearns_nothing() -> None:
    order = gds()
    order.add("a", position=4_000, size=1, path=[])
    order.add("b", position=5_000, size=1, path=["a"])
    order.add("c", position=6_000, size=1, path=["b"])
    assert order.replay_cost("b") == cost(4_000, 5_000)
    assert order.replay_cost("c") == cost(5_000, 6_000)


def test_the_last_of_a_chain_is_worth_more_than_those_before_it() -> None:
    order = GreedyDualSize[str](COST, inner_weight=0.5)
    order.add("a", position=10_000, size=1, path=[])
    order.add("other", position=6_000, size=1, path=[])
    assert order.victim() == "other"
    order.add("b", position=20_000, size=1, path=["a"])
    assert order.priority("a") == cost(0, 10_000) / 2
    assert order.victim() == "a"
    order.set_reachable("b", False)
    assert order.priority("a") == cost(0, 10_000), "a conversation resumes at it again"
    order.set_reachable("b", True)
    order.remove("b")
    assert order.priority("a") == cost(0, 10_000)


def test_with_a_weight_of_one_the_place_on_the_chain_does_not_matter() -> None:
    order = GreedyDualSize[str](COST, inner_weight=1.0)
    order.add("a", position=10_000, size=1, path=[])
    order.add("b", position=20_000, size=1, path=["a"])
    assert order.priority("a") == cost(0, 10_000)


def test_what_is_not_used_goes_when_others_have_come_and_gone() -> None:
    order = gds()
    order.add("idle", position=20_000, size=1, path=[])
    evicted = []
    for number in range(5):
        order.add(f"new {number}", position=10_000, size=1, path=[])
        victim = order.victim()
        assert victim is not None
        order.evict(victim)
        evicted.append(victim)
    assert evicted[0] == "new 0", "the cheaper one first"
    assert "idle" in evicted


def test_use_counts_from_the_present_inflation() -> None:
    order = gds()
    order.add("used", position=10_000, size=1, path=[])
    order.add("gone", position=9_000, size=1, path=[])
    order.evict("gone")
    order.add("new", position=10_100, size=1, path=[])
    assert order.victim() == "used"
    order.touch("used")
    order.add("newer", position=10_050, size=1, path=[])
    assert order.victim() == "used"
    order.remove("used")
    assert order.victim() == "newer"


def test_inflation_rises_with_evictions_alone() -> None:
    order = gds()
    order.add("a", position=10_000, size=2, path=[])
    order.add("b", position=20_000, size=2, path=[])
    order.remove("b")
    assert order.inflation == 0
    order.evict("a")
    assert order.inflation == pytest.approx(0.5)


def test_inflation_never_falls() -> None:
    order = gds()
    order.add("deep", position=90_000, size=1, path=["middle"])
    order.add("gone", position=50_000, size=1, path=[])
    order.evict("gone")
    risen = order.inflation
    order.add("middle", position=89_900, size=1, path=[])
    assert order.victim() == "deep", "it costs almost nothing any more"
    order.evict("deep")
    assert order.inflation == risen


def test_what_no_request_can_reach_goes_first_and_costs_nothing() -> None:
    order = gds()
    order.add("cheap", position=100, size=1, path=[])
    order.add("lost", position=200_000, size=1, path=[])
    order.set_reachable("lost", False)
    assert order.replay_cost("lost") == 0
    assert order.victim() == "lost"
    order.evict("lost")
    assert order.inflation == 0
    assert order.victim() == "cheap"


def test_no_replay_begins_at_what_cannot_be_reached() -> None:
    order = gds()
    order.add("a", position=1_000, size=1, path=[])
    order.add("b", position=2_000, size=1, path=["a"])
    order.add("c", position=3_000, size=1, path=["a", "b"])
    order.set_reachable("b", False)
    assert order.replay_cost("c") == cost(1_000, 3_000)
    order.set_reachable("a", False)
    assert order.replay_cost("c") == cost(0, 3_000)
    order.set_reachable("b", True)
    assert order.replay_cost("c") == cost(2_000, 3_000)


def test_one_that_is_added_again_counts_as_used() -> None:
    order = gds()
    order.add("a", position=1_000, size=1, path=[])
    order.add("b", position=1_000, size=1, path=[])
    order.add("a", position=1_000, size=1, path=[])
    assert order.victim() == "b"
    assert len(order) == 2


def test_a_new_name_changes_neither_the_order_nor_the_chain() -> None:
    order = gds()
    order.add("a", position=1_000, size=1, path=[])
    order.add("b", position=2_000, size=1, path=["a"])
    order.add("other", position=1_500, size=1, path=[])
    order.rekey("a", "final")
    assert order.victim() == "final"
    assert order.replay_cost("b") == cost(1_000, 2_000)
    order.remove("final")
    order.add("final", position=1_000, size=1, path=[])
    assert order.replay_cost("b") == cost(1_000, 2_000)


def test_costs_that_differ_by_a_factor_alone_are_the_same() -> None:
    order = gds()
    order.add("a", position=30_000, size=1, path=[])
    before = order.priority("a")
    order.set_cost(PrefillCost(COST.linear * 512, COST.quadratic * 512))
    assert order.priority("a") == pytest.approx(before)


def test_another_cost_orders_those_that_are_there() -> None:
    order = gds()
    order.add("anchor", position=100_000, size=1, path=[])
    order.add("deep", position=105_000, size=1, path=["anchor"])
    order.add("early", position=6_000, size=1, path=[])
    assert order.victim() == "early"
    order.set_cost(PrefillCost(1.0, 0.0))
    assert order.victim() == "deep"


@dataclass
class Model:
    """Knows every chain, and computes everything from nothing."""

    cost: PrefillCost
    inner_weight: float
    positions: dict[int, int]
    ancestors: dict[int, list[int]]
    sizes: dict[int, int]
    inflation: float = 0.0
    clock: int = 0
    kept: dict[int, tuple[float, int]] = field(default_factory=dict)
    """L and time of the last use, by key."""
    unreachable: set[int] = field(default_factory=set)

    def touch(self, key: int) -> None:
        self.clock += 1
        self.kept[key] = self.inflation, self.clock

    def replay_cost(self, key: int) -> float:
        if key in self.unreachable:
            return 0.0
        before = [self.positions[a] for a in self.ancestors[key] if a in self.kept and a not in self.unreachable]
        return self.cost.normalised().between(max(before, default=0), self.positions[key])

    def priority(self, key: int) -> float:
        inner = any(key in self.ancestors[k] for k in self.kept if k not in self.unreachable)
        weight = self.inner_weight if inner else 1.0
        return self.kept[key][0] + weight * self.replay_cost(key) / self.sizes[key]

    def victim(self) -> int | None:
        return min(
            self.kept, key=lambda k: (k not in self.unreachable, self.priority(k), self.kept[k][1]), default=None
        )

    def remove(self, key: int) -> None:
        del self.kept[key]
        self.unreachable.discard(key)


def random_chains(draw: random.Random, num_places: int, inner_weight: float) -> Model:
    positions, ancestors = {0: 500}, {0: list[int]()}
    for place in range(1, num_places):
        before = draw.choice([None, *range(max(0, place - 12), place)])
        ancestors[place] = [] if before is None else [*ancestors[before], before]
        positions[place] = (0 if before is None else positions[before]) + draw.randrange(1, 4_000)
    sizes = {place: draw.choice([1, 1, 2]) for place in positions}
    return Model(COST, inner_weight, positions, ancestors, sizes)


@pytest.mark.parametrize("inner_weight", [0.25, 1.0])
@pytest.mark.parametrize("slots", [4, 15, 40])
@pytest.mark.parametrize("seed", range(4))
def test_a_long_random_run_agrees_with_an_order_computed_from_nothing(
    seed: int, slots: int, inner_weight: float
) -> None:
    draw = random.Random(seed)
    model = random_chains(draw, 60, inner_weight)
    order = GreedyDualSize[int](COST, inner_weight=inner_weight)
    for _ in range(1000):
        match draw.randrange(8):
            case 0 | 1 | 2:
                key = draw.randrange(60)
                path = [*model.ancestors[key], key] if draw.random() < 0.5 else model.ancestors[key]
                order.add(key, position=model.positions[key], size=model.sizes[key], path=path)
                model.touch(key)
            case 3 | 4 if model.kept:
                order.touch(key := draw.choice(list(model.kept)))
                model.touch(key)
            case 5 if model.kept:
                key, reachable = draw.choice(list(model.kept)), draw.random() < 0.6
                order.set_reachable(key, reachable)
                (model.unreachable.discard if reachable else model.unreachable.add)(key)
            case 6 if model.kept:
                order.remove(key := draw.choice(list(model.kept)))
                model.remove(key)
            case 7 if draw.random() < 0.1:
                model.cost = PrefillCost(draw.random(), draw.random())
                order.set_cost(model.cost)
        while len(model.kept) > slots and (victim := model.victim()) is not None:
            assert order.victim() == victim
            model.inflation = max(model.inflation, model.priority(victim))
            model.remove(victim)
            order.evict(victim)
        assert order.victim() == model.victim()
        assert len(order) == len(model.kept)
        assert order.inflation == model.inflation
        assert [order.replay_cost(key) for key in model.kept] == [model.replay_cost(key) for key in model.kept]
