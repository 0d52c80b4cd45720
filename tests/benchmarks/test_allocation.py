"""The time of an allocation, in tables of all sizes."""

from __future__ import annotations

import allocation
import pytest


@pytest.mark.full
def test_an_allocation_is_no_slower_than_stock_and_hardly_grows_with_the_table() -> None:
    timings = allocation.measure(allocation.SIZES, allocations=100)
    assert allocation.is_met(timings), (allocation.medians(timings), allocation.growth(timings))


def test_an_allocation_in_a_small_table_is_no_slower_than_stock() -> None:
    timings = allocation.measure((1000,), allocations=40)
    assert allocation.is_met(timings), allocation.medians(timings)
