"""Who may wait for a model, and what a client hears that may not."""

import pytest

from exllamav3_adapters.errors import QueueFull
from litellm_exllamav3.admission import LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS, Admission


def served(admission: Admission, *, began: float, ended: float) -> None:
    ticket = admission.admit(began)
    ticket.start(began)
    ticket.leave(ended)


def test_a_full_queue_refuses_the_next_request_and_names_the_limit():
    admission = Admission(model_key="m", max_waiting=2)
    admission.admit(0.0)
    admission.admit(0.0)
    with pytest.raises(QueueFull, match="max_queue: 2"):
        admission.admit(0.0)


def test_a_started_request_does_not_wait_any_more():
    admission = Admission(model_key="m", max_waiting=1)
    admission.admit(0.0).start(1.0)
    admission.admit(1.0)
    assert (admission.num_waiting, admission.num_active) == (1, 1)


def test_a_request_that_leaves_makes_room_once():
    admission = Admission(model_key="m", max_waiting=1)
    ticket = admission.admit(0.0)
    ticket.leave(0.5)
    ticket.leave(0.6)
    admission.admit(0.7)
    assert (admission.num_waiting, admission.num_active) == (1, 0)


def test_retry_after_is_the_mean_service_time_over_those_served_side_by_side():
    admission = Admission(model_key="m", max_waiting=1)
    served(admission, began=0.0, ended=10.0)
    served(admission, began=0.0, ended=30.0)
    for _ in range(4):
        admission.admit(30.0).start(30.0)
    admission.admit(30.0)
    with pytest.raises(QueueFull) as refusal:
        admission.admit(30.0)
    assert refusal.value.retry_after_seconds == pytest.approx(20.0 / 4)


def test_retry_after_adds_the_rest_of_a_load():
    admission = Admission(model_key="m", max_waiting=1)
    assert admission.retry_after(load_seconds_left=42.0) == pytest.approx(42.0)


def test_retry_after_stays_within_reason():
    admission = Admission(model_key="m", max_waiting=1)
    assert admission.retry_after() == SHORTEST_RETRY_SECONDS
    assert admission.retry_after(load_seconds_left=1e6) == LONGEST_RETRY_SECONDS


def test_a_request_that_left_while_it_waited_says_nothing_of_service_times():
    admission = Admission(model_key="m", max_waiting=1)
    admission.admit(0.0).leave(500.0)
    assert admission.retry_after() == SHORTEST_RETRY_SECONDS
