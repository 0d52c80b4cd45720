"""The fit, against chunks whose cost is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost
from exllamav3_adapters.policies.prefill_cost_fit import PrefillCostFit

Chunk = tuple[int, int]
"""Start and length, in tokens."""

D_OVER_E = st.sampled_from([5.0, 20.0, 61.0, 200.0])
SEEDS = st.integers(0, 2**32)
REPLAYS = [(0, 2_000), (0, 8_000), (6_000, 12_000), (30_000, 34_000), (30_000, 45_000), (59_000, 60_000), (0, 60_000)]


def prompts(draw: random.Random, *, chunk_size: int = 2048, longest: int = 60_000) -> Iterator[Chunk]:
    """Chunks of prompts one after another, each resumed somewhere, its last chunk shorter."""
    while True:
        end = draw.randrange(1_000, longest)
        for start in range(draw.choice([0, 0, end // 2]), end, chunk_size):
            yield start, min(chunk_size, end - start)


def measured(
    cost: PrefillCost,
    chunks: Iterable[Chunk],
    count: int,
    factor: Callable[[], float] = lambda: 1.0,
    fixed_seconds: float = 0.0,
) -> PrefillCostFit:
    fit = PrefillCostFit()
    for _, (start, length) in zip(range(count), chunks, strict=False):
        fit.add(start, length, cost.between(start, start + length) * factor() + fixed_seconds)
    return fit


def turned(before: PrefillCost, after: PrefillCost, margin: float) -> list[tuple[Chunk, Chunk]]:
    """Replays whose costs differ by more than `margin` before, and stand in another order afterwards."""
    return [
        (one, other)
        for one, other in combinations(REPLAYS, 2)
        if abs(math.log(before.between(*one) / before.between(*other))) > margin
        and (before.between(*one) < before.between(*other)) != (after.between(*one) < after.between(*other))
    ]


def test_before_the_first_chunk_the_prior_holds() -> None:
    fit = PrefillCostFit(PrefillCost(2.0, 0.5))
    assert fit.cost == PrefillCost(2.0, 0.5)
    assert (fit.quality.samples, fit.quality.relative_error, fit.quality.measured) == (0, None, False)


@settings(deadline=None)
@given(D_OVER_E, SEEDS)
def test_what_is_measured_without_noise_is_found_exactly(ratio: float, seed: int) -> None:
    true = PrefillCost(0.2, 0.2 / ratio)
    fit = measured(true, prompts(random.Random(seed)), 50)
    assert fit.quality.measured
    assert fit.cost.linear == pytest.approx(true.linear)
    assert fit.cost.quadratic == pytest.approx(true.quadratic)
    assert fit.quality.relative_error == pytest.approx(0, abs=1e-9)


@settings(deadline=None)
@given(D_OVER_E, SEEDS)
def test_fifty_noisy_chunks_settle_what_replays_cost(ratio: float, seed: int) -> None:
    draw = random.Random(seed)
    true = PrefillCost(0.2, 0.2 / ratio)
    fit = measured(true, prompts(draw), 50, factor=lambda: draw.lognormvariate(0, 0.05), fixed_seconds=0.01)
    for start, end in REPLAYS:
        assert fit.cost.between(start, end) == pytest.approx(true.between(start, end), rel=0.25)
    assert fit.quality.relative_error is not None
    assert fit.quality.relative_error < 0.1


@settings(deadline=None)
@given(D_OVER_E, SEEDS, st.integers(0, 49), st.sampled_from([0.01, 100.0]))
def test_an_outlier_among_exact_chunks_changes_nothing(ratio: float, seed: int, which: int, factor: float) -> None:
    true = PrefillCost(0.2, 0.2 / ratio)
    numbers = iter(range(50))
    fit = measured(true, prompts(random.Random(seed)), 50, factor=lambda: factor if next(numbers) == which else 1.0)
    assert fit.cost.linear == pytest.approx(true.linear)
    assert fit.cost.quadratic == pytest.approx(true.quadratic)


@settings(deadline=None)
@given(D_OVER_E, SEEDS, st.integers(0, 59_000), st.sampled_from([0.01, 100.0]))
def test_one_outlier_turns_no_order_of_costs_that_differ_by_a_few_percent(
    ratio: float, seed: int, start: int, factor: float
) -> None:
    draw = random.Random(seed)
    true = PrefillCost(0.2, 0.2 / ratio)
    fit = measured(true, prompts(draw), 50, factor=lambda: draw.lognormvariate(0, 0.03))
    before = fit.cost
    fit.add(start, 2048, factor * true.between(start, start + 2048))
    assert not turned(before, fit.cost, margin=0.05)


def test_a_first_chunk_that_compiles_kernels_turns_no_order() -> None:
    fit = PrefillCostFit()
    fit.add(0, 2048, 40.0)
    assert not turned(TYPICAL, fit.cost, margin=0.0)


@settings(deadline=None)
@given(st.integers(256, 4096), st.floats(1e-5, 1e3), st.integers(1, 60))
def test_chunks_at_one_depth_keep_the_ratio_of_the_prior(length: int, seconds: float, count: int) -> None:
    fit = PrefillCostFit()
    for _ in range(count):
        fit.add(0, length, seconds)
    assert not fit.quality.measured
    assert fit.cost.linear / fit.cost.quadratic == pytest.approx(TYPICAL.linear / TYPICAL.quadratic)
    assert fit.cost.between(0, length) == pytest.approx(seconds)


def test_a_machine_that_slows_with_no_depth_has_a_linear_cost() -> None:
    assert measured(PrefillCost(0.2, 0.0), prompts(random.Random(0)), 50).cost.quadratic == pytest.approx(0)


def test_chunks_that_get_faster_with_depth_make_no_negative_cost() -> None:
    fit = PrefillCostFit()
    for start in range(0, 60_000, 2048):
        fit.add(start, 2048, 1.0 - start / 100_000)
    assert fit.cost.quadratic == 0
    assert fit.cost.linear > 0


def test_chunks_that_cost_attention_alone_make_no_negative_cost() -> None:
    fit = PrefillCostFit()
    for start in range(0, 60_000, 2048):
        fit.add(start, 2048, max(1e-3, start / 1000 - 10))
    assert fit.cost.linear == 0
    assert fit.cost.quadratic > 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, 5e-324, math.nan, math.inf])
def test_times_that_are_none_are_ignored(seconds: float) -> None:
    fit = PrefillCostFit()
    fit.add(0, 2048, seconds)
    assert fit.quality.samples == 0


@pytest.mark.parametrize("length", [0, 1, 255])
def test_chunks_of_less_than_a_page_are_ignored(length: int) -> None:
    fit = PrefillCostFit()
    fit.add(1_000, length, 0.5)
    assert fit.quality.samples == 0


def test_a_round_of_several_chunks_counts_by_all_of_them() -> None:
    true, draw = PrefillCost(0.2, 0.01), random.Random(3)
    fit, chunks = PrefillCostFit(), prompts(draw)
    for _ in range(50):
        together = [next(chunks) for _ in range(draw.randrange(1, 4))]
        fit.add_round(together, sum(true.between(start, start + length) for start, length in together))
    assert fit.cost.linear == pytest.approx(true.linear)
    assert fit.cost.quadratic == pytest.approx(true.quadratic)


def test_pages_that_remain_do_not_push_out_whole_chunks() -> None:
    true, draw = PrefillCost(0.2, 0.2 / 61), random.Random(5)
    fit = measured(true, prompts(draw), 50)
    for _ in range(1000):
        start = draw.randrange(60_000)
        fit.add(start, 256, true.between(start, start + 256) + 0.05)
    assert fit.cost.linear == pytest.approx(true.linear)
    assert fit.cost.quadratic == pytest.approx(true.quadratic)


def test_a_machine_that_becomes_another_is_learned_anew() -> None:
    draw = random.Random(7)
    fit = measured(PrefillCost(0.2, 0.2 / 61), prompts(draw), 200)
    now = PrefillCost(0.4, 0.4 / 20)
    for _, (start, length) in zip(range(200), prompts(draw), strict=False):
        fit.add(start, length, now.between(start, start + length))
    assert fit.cost.linear == pytest.approx(now.linear, rel=0.02)
    assert fit.cost.quadratic == pytest.approx(now.quadratic, rel=0.02)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=4),
            st.one_of(st.floats(0, 1e4), st.floats(allow_nan=True)),
        ),
        max_size=120,
    )
)
def test_whatever_is_measured_makes_a_cost_and_bounded_memory(rounds: list[tuple[list[Chunk], float]]) -> None:
    fit = PrefillCostFit()
    for chunks, seconds in rounds:
        fit.add_round(chunks, seconds)
    assert isinstance(fit.cost, PrefillCost), "which refuses coefficients that make no cost"
    assert fit.quality.kept <= 8 * 12
