from __future__ import annotations

import math

import pytest

from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost


def test_positions_count_in_thousands_of_tokens() -> None:
    assert PrefillCost(2.0, 0.5).between(0, 4_000) == 2.0 * 4 + 0.5 * 16
    assert PrefillCost(2.0, 0.5).between(4_000, 6_000) == pytest.approx(2.0 * 2 + 0.5 * (36 - 16))


def test_a_prefill_costs_the_sum_of_its_parts() -> None:
    whole = TYPICAL.between(0, 50_000)
    assert TYPICAL.between(0, 7_000) + TYPICAL.between(7_000, 50_000) == pytest.approx(whole)


def test_nothing_costs_nothing() -> None:
    assert TYPICAL.between(3_000, 3_000) == 0


def test_normalised_costs_keep_their_order_and_lose_their_scale() -> None:
    assert PrefillCost(3.0, 0.3).normalised().between(0, 10_000) == pytest.approx(1.0)
    assert PrefillCost(0.0, 7.0).normalised() == PrefillCost(0.0, 14.0).normalised()


@pytest.mark.parametrize("coefficients", [(-1.0, 1.0), (1.0, -1e-9), (0.0, 0.0), (math.nan, 1.0), (1.0, math.inf)])
def test_coefficients_that_make_no_cost_are_refused(coefficients: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="prefill cost coefficients"):
        PrefillCost(*coefficients)
