"""What LiteLLM loses of a body, put back; its own translations are those of 1.108."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_exllamav3.lost_fields import with_lost_fields

ENABLED = {"type": "enabled", "budget_tokens": 2000}


def found(params: dict[str, Any], call_type: str, **body: Any) -> dict[str, Any]:
    return dict(with_lost_fields(params, {"proxy_server_request": {"body": body}}, call_type))


def test_an_anthropic_request_keeps_its_budget_and_gets_no_effort_of_litellms() -> None:
    assert found({"reasoning_effort": "low"}, "anthropic_messages", thinking=ENABLED) == {"thinking": ENABLED}
    adaptive = {"type": "adaptive"}
    assert found({"reasoning_effort": "medium"}, "anthropic_messages", thinking=adaptive) == {"thinking": adaptive}


@pytest.mark.parametrize("params", [{}, {"reasoning_effort": "low"}], ids=["dropped", "derived"])
def test_the_effort_of_an_anthropic_request_is_its_own(params: dict[str, Any]) -> None:
    assert found(params, "anthropic_messages", output_config={"effort": "max"}) == {"reasoning_effort": "max"}


def test_a_choice_without_parallel_calls_stays_one() -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    params = found({"tool_choice": "required"}, "anthropic_messages", tool_choice=choice)
    assert params == {"tool_choice": "required", "parallel_tool_calls": False}
    choice["disable_parallel_tool_use"] = False
    assert found({"tool_choice": "required"}, "anthropic_messages", tool_choice=choice) == {"tool_choice": "required"}


def test_what_another_hook_has_taken_out_stays_out() -> None:
    body = {"thinking": ENABLED, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    assert found({}, "anthropic_messages", **body) == {}


def test_the_verbosity_of_a_responses_request_comes_back() -> None:
    assert found({}, "aresponses", text={"verbosity": "low"}) == {"verbosity": "low"}


@pytest.mark.parametrize("litellm_params", [{}, {"proxy_server_request": None}, {"proxy_server_request": {"body": 3}}])
def test_a_call_without_a_body_is_left_alone(litellm_params: dict[str, Any]) -> None:
    for call_type in ("acompletion", "anthropic_messages", "aresponses"):
        assert with_lost_fields({"a": 1}, litellm_params, call_type) == {"a": 1}


def test_odd_values_pass_on_to_where_they_are_refused() -> None:
    for value in (None, 3, "x", [], {}, {"type": []}):
        found({"reasoning_effort": "low"}, "anthropic_messages", thinking=value, tool_choice=value, output_config=value)
        found({}, "aresponses", text=value)
