"""Which messages and tools a request may carry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.chat_request import read_chat

USER = {"role": "user", "content": "hello"}


def refused(messages: Any, **params: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_chat(messages, params)
    return caught.value


def test_strings_and_text_parts_pass_as_they_are() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = read_chat([{"role": "system", "content": parts}, USER], {})
    assert list(chat.messages) == [{"role": "system", "content": parts}, USER]


def test_fields_that_no_template_reads_are_left_out() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": [part], "cache_control": {}, "provider_specific_fields": {"x": 1}}
    assert read_chat([message], {}).messages[0] == {"role": "user", "content": [{"type": "text", "text": "a"}]}


def test_a_tool_turn_keeps_its_calls_and_ids() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}
    chat = read_chat(
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
        ],
        {},
    )
    assert chat.messages[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    assert chat.messages[2]["tool_call_id"] == "c1"


def test_reasoning_parts_of_an_earlier_turn_are_left_out() -> None:
    turn = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}]}
    assert read_chat([USER, turn], {}).messages[1]["content"] == [{"type": "text", "text": "4"}]


def test_tools_and_template_variables_come_from_the_parameters() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}, "cache_control": {"type": "ephemeral"}}
    chat = read_chat([USER], {"tools": [tool], "chat_template_kwargs": {"enable_thinking": False}})
    schema = {"type": "object", "properties": {}}
    assert list(chat.tools) == [
        {"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}
    ]
    assert chat.template_variables == {"enable_thinking": False}


def test_a_tool_comes_to_the_template_in_one_form_whatever_the_client_wrote() -> None:
    schema = {"properties": {"b": {}, "a": {}}, "type": "object"}
    function = {"parameters": schema, "strict": True, "defer_loading": False, "description": "d", "name": "f"}
    chat = read_chat([USER], {"tools": [{"function": function, "type": "function"}]})
    plain = '[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"properties": '
    assert json.dumps(chat.tools) == plain + '{"b": {}, "a": {}}, "type": "object"}}}]'


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([], "messages", "must not be empty"),
        ("hello", "messages", "a list"),
        (None, "messages", "a list"),
        (["hello"], "messages[0]", "an object"),
        ([{"content": "x"}], "messages[0].role", "must be one of"),
        ([{"role": "robot", "content": "x"}], "messages[0].role", "must be one of"),
        ([USER, {"role": "user"}], "messages[1].content", "missing"),
        ([{"role": "user", "content": 3}], "messages[0].content", "a string or a list"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]", "content part"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "a string"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "messages[0].content[0].type", "nothing else"),
        ([{"role": "user", "content": [{"type": {}}]}], "messages[0].content[0].type", "nothing else"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function", "name"),
    ],
)
def test_a_malformed_message_is_refused_with_its_place(messages: Any, param: str, says: str) -> None:
    error = refused(messages)
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize(("kind", "media"), [("image_url", "images"), ("input_audio", "audio"), ("file", "files")])
def test_other_media_are_refused_with_a_reason(kind: str, media: str) -> None:
    error = refused([{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind, kind: {}}]}])
    assert error.param == "messages[0].content[1]"
    assert f"text only, not {media}" in error.message


@pytest.mark.parametrize("tools", ["f", [1], [{"type": "web_search"}], [{"function": {"name": ""}}]])
def test_a_malformed_tool_is_refused(tools: Any) -> None:
    assert str(refused([USER], tools=tools).param).startswith("tools")


@pytest.mark.parametrize("variables", [[], {"messages": []}, {"tools": []}])
def test_template_variables_do_not_replace_the_chat(variables: Any) -> None:
    assert str(refused([USER], chat_template_kwargs=variables).param).startswith("chat_template_kwargs")


@pytest.mark.parametrize("kind", ["string", "integer", "strin", 5, ["string", "null"]])
def test_a_tool_whose_arguments_would_be_no_object_is_refused(kind: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": kind}}}
    assert refused([USER], tools=[tool]).param == "tools[0].function.parameters.type"


@pytest.mark.parametrize("parameters", [None, {}, {"type": None}, {"type": "object"}, {"type": ["object", "null"]}])
def test_a_tool_may_leave_open_what_it_takes(parameters: Any) -> None:
    read_chat([USER], {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]})
