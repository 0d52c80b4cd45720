"""Which shapes of each route's body are refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.request_shapes import refuse_misshapen

USER = {"role": "user", "content": "hi"}
CHAT = {"messages": [USER]}
MESSAGES = {"max_tokens": 5, "messages": [USER]}
RESPONSE = {"input": "hi"}


@pytest.mark.parametrize(
    ("call_type", "body", "message"),
    [
        ("acompletion", {**CHAT, "temperature": "hot"}, "temperature must be a number, not a string."),
        ("acompletion", {**CHAT, "stop": {}}, "stop must be a string or a list, not an object."),
        ("acompletion", {**CHAT, "messages": [{}]}, "messages[0].role is missing."),
        ("acompletion", {**CHAT, "tools": [{"function": {}}]}, "tools[0].function.name is missing."),
        ("acompletion", {**CHAT, "logit_bias": {"a": "b"}}, "logit_bias[...] must be a number, not a string."),
        ("acompletion", {**CHAT, "parallel_tool_calls": 1}, "parallel_tool_calls must be a boolean, not an integer."),
        ("atext_completion", {"prompt": {}}, "prompt must be a string or a list, not an object."),
        ("atext_completion", {"prompt": [[1.5]]}, "prompt[0][0] must be an integer, not a number."),
        ("anthropic_messages", {"messages": [USER]}, "max_tokens is missing."),
        ("anthropic_messages", {**MESSAGES, "tools": [{}]}, "tools[0].name is missing."),
        (
            "anthropic_messages",
            {**MESSAGES, "tool_choice": {"type": []}},
            "tool_choice.type must be a string, not a list.",
        ),
        (
            "anthropic_messages",
            {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": None}},
            "thinking.budget_tokens must be an integer, not null.",
        ),
        (
            "anthropic_messages",
            {**MESSAGES, "metadata": {"user_id": 3}},
            "metadata.user_id must be a string, not an integer.",
        ),
        (
            "anthropic_messages",
            {"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": None}]}]},
            "messages[0].content[0].name must be a string, not null.",
        ),
        ("aresponses", {"input": [{"call_id": {}}]}, "input[0].call_id must be a string, not an object."),
        ("aresponses", {**RESPONSE, "stream": [1]}, "stream must be a boolean, not a list."),
        ("aresponses", {**RESPONSE, "text": {"format": {}}}, "text.format.type is missing."),
    ],
)
def test_another_shape_is_refused_in_words_that_name_it(call_type: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_misshapen(body, call_type)
    assert caught.value.message == message
    assert caught.value.param == message.split(" ", 1)[0]


@pytest.mark.parametrize(
    ("call_type", "body"),
    [
        ("acompletion", {**CHAT, "temperature": None, "stop": ["x"], "tools": None, "anything": object()}),
        ("acompletion", {**CHAT, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ("atext_completion", {"prompt": [[1, 2], [3]]}),
        ("atext_completion", {"prompt": [1, 2]}),
        ("anthropic_messages", {**MESSAGES, "system": [{"type": "text", "text": "s", "cache_control": {}}]}),
        ("anthropic_messages", {**MESSAGES, "tools": [{"type": "bash_20250124", "name": "bash"}]}),
        ("aresponses", {"input": [{"type": "reasoning", "summary": [], "id": "r"}, USER]}),
        ("aembedding", {"input": {}}),
    ],
)
def test_what_clients_send_passes(call_type: str, body: dict[str, Any]) -> None:
    refuse_misshapen(body, call_type)
