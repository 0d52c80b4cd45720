"""A call to one of our deployments, as LiteLLM would refuse it and as it lets it pass."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_exllamav3.deployment_params import ALLOWED, with_allowed_params

FLAT = [{"type": "function", "name": name} for name in "abc"]
NESTED = [{"type": "function", "function": {"name": name}} for name in "abc"]


def test_the_clients_own_list_is_kept() -> None:
    kwargs = {"allowed_openai_params": ["top_z", "thinking"]}
    assert with_allowed_params(kwargs)["allowed_openai_params"] == ["top_z", *sorted(ALLOWED, key="thinking".__ne__)]
    assert kwargs == {"allowed_openai_params": ["top_z", "thinking"]}


@pytest.mark.parametrize("own", [None, 3, "thinking", {}])
def test_a_list_that_is_none_is_replaced(own: Any) -> None:
    assert with_allowed_params({"allowed_openai_params": own})["allowed_openai_params"] == list(ALLOWED)


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (FLAT, {"type": "allowed_tools", "mode": "required", "tools": [FLAT[2], FLAT[0]]}),
        (NESTED, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NESTED[2], NESTED[0]]}}),
    ],
)
def test_allowed_tools_are_a_shorter_list(tools: list[Any], choice: dict[str, Any]) -> None:
    found = with_allowed_params({"tools": tools, "tool_choice": choice})
    assert (found["tools"], found["tool_choice"]) == ([tools[0], tools[2]], "required")


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        {"type": "function", "name": "a"},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "none", "tools": FLAT},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "z"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"name": []}]},
        {"type": "allowed_tools", "allowed_tools": 3},
        {"type": []},
    ],
)
def test_any_other_choice_is_left_alone(choice: Any) -> None:
    found = with_allowed_params({"tools": FLAT, "tool_choice": choice})
    assert (found["tools"], found["tool_choice"]) == (FLAT, choice)
