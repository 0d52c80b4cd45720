"""What chunks took becomes a cost, which is given out again only when it has changed."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from exllamav3_adapters.cpu.install import install

install()

from exllamav3_adapters.exl3.prefill_times import PrefillTimes, device_clock
from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost

CHUNK = 2048


def times() -> PrefillTimes:
    return PrefillTimes(now=lambda: 0.0)


def measure(found: PrefillTimes, cost: PrefillCost, num_chunks: int) -> None:
    """As many chunks of one prompt."""
    for index in range(num_chunks):
        found.add(index * CHUNK, CHUNK, cost.between(index * CHUNK, (index + 1) * CHUNK))


def test_a_machine_of_the_usual_ratio_changes_nothing() -> None:
    found = times()
    measure(found, PrefillCost(TYPICAL.linear / 7, TYPICAL.quadratic / 7), 50)
    assert found.changed_cost() is None


def test_another_ratio_is_there_within_fifty_chunks_and_given_out_once() -> None:
    found, steep = times(), PrefillCost(0.1, 0.05)
    measure(found, steep, 50)
    cost = found.changed_cost()
    assert cost is not None
    assert abs(cost.normalised().linear / steep.normalised().linear - 1) < 0.01
    assert found.changed_cost() is None


def test_few_new_chunks_are_not_looked_at() -> None:
    found = times()
    measure(found, PrefillCost(0.1, 0.05), 7)
    assert found.changed_cost() is None


def test_an_outlier_changes_nothing() -> None:
    found, steep = times(), PrefillCost(0.1, 0.05)
    measure(found, steep, 50)
    found.changed_cost()
    found.add(0, CHUNK, 300.0)
    measure(found, steep, 8)
    assert found.changed_cost() is None


def test_counters_are_in_seconds() -> None:
    found, steep = times(), PrefillCost(0.1, 0.05)
    assert found.counters()["prefill_cost_samples"] == 0
    measure(found, steep, 50)
    counters = found.counters()
    assert counters["prefill_cost_samples"] == 50
    assert abs(counters["prefill_cost_d"] - 0.1) < 1e-6
    assert abs(counters["prefill_cost_e"] - 0.05) < 1e-6
    assert counters["prefill_cost_error"] < 1e-6


def test_a_clock_of_a_cpu_goes_on() -> None:
    now = device_clock(None)
    assert now() <= now()
