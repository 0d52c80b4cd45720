from __future__ import annotations

from typing import Any

import pytest

from exllamav3_adapters.contract import Head
from litellm_exllamav3.head import RequestHead, chat_head, request_head, starts_conversation

SYSTEM = {"role": "system", "content": "You are"}
DEVELOPER = {"role": "developer", "content": "Be brief"}
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {}}}


def test_a_chat_head_is_its_leading_system_and_developer_messages_and_its_tools() -> None:
    body = {"messages": [SYSTEM, DEVELOPER, USER, SYSTEM], "tools": [TOOL], "temperature": 1}
    assert request_head(body, "acompletion") == RequestHead(
        messages=(SYSTEM, DEVELOPER), tools=[TOOL], starts_conversation=True
    )


def test_legacy_functions_are_tools() -> None:
    head = request_head({"messages": [USER], "functions": [{"name": "ls"}]}, "acompletion")
    assert head is not None
    assert (list(head.messages), head.tools) == ([], [{"name": "ls"}])


@pytest.mark.parametrize("system", ["You are", [{"type": "text", "text": "You are", "cache_control": {}}]])
def test_an_anthropic_head_is_its_system_and_tools(system: object) -> None:
    tool = {"name": "ls", "input_schema": {"type": "object"}}
    head = request_head({"system": system, "messages": [USER], "tools": [tool]}, "anthropic_messages")
    assert head is not None
    assert (list(head.messages), head.tools) == ([{"role": "system", "content": system}], [tool])


def test_a_responses_head_is_its_instructions_leading_items_and_tools() -> None:
    body = {"instructions": "You are", "input": [DEVELOPER, USER], "tools": [{"type": "function", "name": "ls"}]}
    head = request_head(body, "aresponses")
    assert head is not None
    assert list(head.messages) == [SYSTEM, DEVELOPER]
    assert head.tools == [{"type": "function", "name": "ls"}]
    text_input = request_head({"instructions": "You are", "input": "hi"}, "aresponses")
    assert text_input is not None
    assert text_input.starts_conversation


@pytest.mark.parametrize(
    ("body", "call_type"),
    [
        ({"messages": [USER]}, "acompletion"),
        ({"messages": []}, "acompletion"),
        ({"messages": [USER], "system": ""}, "anthropic_messages"),
        ({"messages": [USER], "system": [], "tools": []}, "anthropic_messages"),
        ({"input": "hi", "instructions": None}, "aresponses"),
        ({"prompt": "You are"}, "atext_completion"),
        ({"messages": [SYSTEM]}, "atext_completion"),
        ({"input": "text"}, "aembedding"),
    ],
)
def test_a_request_without_a_head_has_none(body: dict[str, Any], call_type: str) -> None:
    assert request_head(body, call_type) is None


MALFORMED: list[Any] = [
    None,
    [],
    "body",
    {},
    {"messages": "hi"},
    {"messages": {"role": "system"}},
    {"messages": [SYSTEM], "tools": "ls"},
    {"messages": [SYSTEM], "functions": 3},
    {"messages": [None, 3, SYSTEM]},
    {"messages": [{"role": ["system"]}]},
    {"messages": [{"role": {}}]},
    {"messages": [USER], "system": 3},
    {"messages": None, "system": "You are"},
    {"input": 3, "instructions": "You are"},
    {"input": "hi", "instructions": ["You are"]},
    {"input": [{"role": []}, {"type": {}}]},
]


@pytest.mark.parametrize("body", MALFORMED)
@pytest.mark.parametrize("call_type", ["acompletion", "anthropic_messages", "aresponses", "atext_completion"])
def test_a_malformed_body_has_no_head(body: Any, call_type: str) -> None:
    assert request_head(body, call_type) is None
    assert starts_conversation(body, call_type) in (True, False)


@pytest.mark.parametrize(
    ("body", "call_type", "starts"),
    [
        ({"messages": [SYSTEM, USER]}, "acompletion", True),
        ({"messages": [SYSTEM, USER, USER]}, "acompletion", True),
        ({"messages": [SYSTEM, USER, ASSISTANT, USER]}, "acompletion", False),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "acompletion", False),
        ({"messages": [USER], "system": "s"}, "anthropic_messages", True),
        ({"messages": [USER, ASSISTANT]}, "anthropic_messages", False),
        ({"input": "hi"}, "aresponses", True),
        ({"input": [DEVELOPER, USER]}, "aresponses", True),
        ({"input": [USER, ASSISTANT]}, "aresponses", False),
        ({"input": [USER, {"type": "function_call_output", "output": ""}]}, "aresponses", False),
        ({"input": [USER, {"type": "reasoning"}]}, "aresponses", False),
        ({"input": "hi", "previous_response_id": "resp_1"}, "aresponses", False),
        ({"input": "hi", "conversation": "conv_1"}, "aresponses", False),
    ],
)
def test_a_conversation_starts_while_the_model_has_not_answered(
    body: dict[str, Any], call_type: str, starts: bool
) -> None:
    assert starts_conversation(body, call_type) is starts


def test_the_translated_head_ends_at_the_first_other_message() -> None:
    assert chat_head([SYSTEM, DEVELOPER, USER, SYSTEM], [TOOL]) == Head(messages=(SYSTEM, DEVELOPER), tools=(TOOL,))
    assert chat_head([USER], None) == Head()
