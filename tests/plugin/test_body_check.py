"""Which bodies are refused before LiteLLM fails on them, and that no good one is."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.body_check import refuse_malformed

USER = {"role": "user", "content": "hi"}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}


def result_with(block: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]}


def image(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image", "source": source}


READ = result_with(DOCUMENT)


@pytest.mark.parametrize(
    ("call_type", "body"),
    [
        ("acompletion", {"messages": [USER]}),
        ("acompletion", {"messages": [USER], "response_format": {"type": "text"}, "timeout": 3}),
        ("acompletion", {"messages": [{"role": "assistant", "content": None, "tool_calls": []}, USER]}),
        ("acompletion", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}]}),
        ("acompletion", {"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}),
        (
            "anthropic_messages",
            {
                "messages": [USER, TOOL_USE],
                "tool_choice": {"type": "auto"},
                "thinking": {"type": "disabled"},
                "max_tokens": 5,
            },
        ),
        (
            "anthropic_messages",
            {
                "max_tokens": 5,
                "messages": [{"role": "user", "content": [PICTURE]}, TOOL_USE, result_with(PICTURE)],
            },
        ),
        ("aresponses", {"input": "hi"}),
        ("aresponses", {"input": [{"role": "user", "content": "hi"}, {"type": "function_call_output", "output": "4"}]}),
        ("aresponses", {"input": [{"role": "user", "content": [{"text": "no type"}, {"type": "input_text"}]}]}),
        ("acompletion", {"messages": [USER], "timeout": 0, "stream_timeout": 0.5}),
        ("aembedding", {"input": 3}),
        ("something new", {}),
    ],
)
def test_a_good_body_passes(call_type: str, body: dict[str, Any]) -> None:
    refuse_malformed(body, call_type)


@pytest.mark.parametrize(
    ("call_type", "body", "param"),
    [
        ("acompletion", {}, "messages"),
        ("acompletion", {"messages": []}, "messages"),
        ("acompletion", {"messages": [USER, 3]}, "messages[1]"),
        ("acompletion", {"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
        ("acompletion", {"messages": [{"role": "tool", "content": {}}]}, "messages[0].content"),
        ("acompletion", {"messages": [{"role": "user", "content": [IMAGE, 3]}]}, "messages[0].content[1]"),
        ("acompletion", {"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages[0].content[0].type"),
        ("acompletion", {"messages": [USER], "timeout": True}, "timeout"),
        ("acompletion", {"messages": [USER], "timeout": -1}, "timeout"),
        ("acompletion", {"messages": [USER], "timeout": -(10**400)}, "timeout"),
        ("anthropic_messages", {"messages": [USER], "timeout": math.nan}, "timeout"),
        (
            "anthropic_messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, DOCUMENT]}]},
            "messages[0].content[1]",
        ),
        (
            "anthropic_messages",
            {"max_tokens": 5, "messages": [USER, TOOL_USE, READ]},
            "messages[2].content[0].content[0]",
        ),
        ("aresponses", {"input": "hi", "stream_timeout": math.inf}, "stream_timeout"),
        ("acompletion", {"messages": [USER], "custom_llm_provider": "openai"}, "custom_llm_provider"),
        ("anthropic_messages", {"messages": [USER], "max_tokens": 5, "thinking": "on"}, "thinking"),
        ("anthropic_messages", {"messages": [USER]}, "max_tokens"),
        ("anthropic_messages", {"max_tokens": 5, "messages": [USER, {"content": "x"}]}, "messages[1].role"),
        ("anthropic_messages", {"max_tokens": 5, "messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
        (
            "anthropic_messages",
            {"messages": [USER], "max_tokens": 5, "tool_choice": {"type": "junk"}},
            "tool_choice.type",
        ),
        (
            "anthropic_messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": [image({"type": "file", "file_id": "f"})]}]},
            "messages[0].content[0].source",
        ),
        (
            "anthropic_messages",
            {"max_tokens": 5, "messages": [USER, TOOL_USE, result_with(image({"type": "base64", "data": ""}))]},
            "messages[2].content[0].content[0].source",
        ),
        (
            "aresponses",
            {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].output[0]",
        ),
        ("aresponses", {"input": []}, "input"),
        ("aresponses", {"input": [{"role": "user", "content": [{"type": []}]}]}, "input[0].content[0].type"),
        ("aresponses", {"input": [{"role": "user", "content": [{}, {"type": {}}]}]}, "input[0].content[1].type"),
        ("aresponses", {"input": [{"content": 3}]}, "input[0].content"),
        ("atext_completion", {"prompt": 3}, "prompt"),
    ],
)
def test_a_malformed_body_is_refused_with_its_place(call_type: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_malformed(body, call_type)
    assert caught.value.param == param


def test_a_long_chat_is_checked_in_a_fraction_of_a_millisecond() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}] * 500}
    times = []
    for _ in range(50):
        began = time.thread_time()
        refuse_malformed(body, "acompletion")
        times.append(time.thread_time() - began)
    assert sorted(times)[25] < 0.001
