"""The `anthropic` client against real weights."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from demo_chats import COUNT, new_head
from proxy_process import Proxy
from real_tools import ANTHROPIC_TOOLS, QUESTION, is_valid_call

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

CALL: dict[str, Any] = {
    "model": "local",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": QUESTION}],
    "tools": ANTHROPIC_TOOLS,
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "extra_body": {"temperature": 0},
}


@pytest.fixture(scope="module")
def client(real_proxy: Proxy) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=real_proxy.base_url, api_key=real_proxy.master_key, max_retries=0, timeout=60)


def test_system_blocks_with_cache_control_are_cached(client: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {
        "model": "local",
        "max_tokens": 12,
        "system": [{"type": "text", "text": new_head(300), "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": COUNT}],
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].text == whole.content[0].text
    assert streamed.usage.cache_read_input_tokens > 300


def test_a_tool_is_called_whole_and_streamed(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**CALL)
    with client.messages.stream(**CALL) as stream:
        pieces = [event for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        (call,) = message.content
        assert message.stop_reason == "tool_use"
        assert is_valid_call(call.name, call.input)
    assert (streamed.content[0].name, streamed.content[0].input) == (whole.content[0].name, whole.content[0].input)
    assert len(pieces) > 2


def test_a_call_that_is_cut_is_a_call_with_what_there_was_of_it(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**CALL, "max_tokens": 26})
    assert message.stop_reason == "max_tokens"
    assert [block.type for block in message.content] == ["tool_use"]
    assert isinstance(message.content[0].input, dict)


def test_a_result_goes_back_and_an_answer_comes(client: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    said = client.messages.create(**{**CALL, "tool_choice": choice})
    (call,) = said.content
    assert call.name == "get_weather"
    messages = [
        *CALL["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in said.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain all week"}]},
    ]
    request = {**CALL, "messages": messages, "tool_choice": {"type": "none"}, "max_tokens": 16}
    answer = client.messages.create(**request)
    assert [block.type for block in answer.content] == ["text"]


def test_the_count_of_tokens_is_the_engines_own(client: anthropic.Anthropic) -> None:
    request = {key: CALL[key] for key in ("model", "messages", "tools")}
    counted = client.messages.count_tokens(**request)
    answer = client.messages.create(**request, max_tokens=1)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
