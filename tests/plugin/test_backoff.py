"""When an engine that died comes back."""

from litellm_exllamav3.backoff import Backoff


def test_the_pause_doubles_with_each_death_in_a_row_up_to_the_longest():
    backoff = Backoff(first_seconds=0.5, longest_seconds=30.0, max_deaths=3, window_seconds=10.0)
    assert [backoff.died(now * 8.0) for now in range(9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_the_third_death_within_the_window_is_the_last():
    backoff = Backoff(max_deaths=3, window_seconds=600.0)
    assert [backoff.died(now) for now in (0.0, 300.0, 600.0)] == [0.5, 1.0, None]


def test_an_engine_that_lived_longer_than_the_window_begins_anew():
    backoff = Backoff(max_deaths=3, window_seconds=600.0)
    assert [backoff.died(now) for now in (0.0, 1.0, 700.0)] == [0.5, 1.0, 0.5]
