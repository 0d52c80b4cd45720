"""What the counting routes tell is what the same request then uses."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest
from proxy_process import Proxy

SYSTEM = "You are terse."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
MESSAGES_TOOL = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}
RESPONSES_TOOL = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": SCHEMA}
USER = {"role": "user", "content": "say: seven"}


def post(proxy: Proxy, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{proxy.base_url}{path}", json={"model": "tiny", **body}, headers=proxy.headers, timeout=30)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER]},
        {"messages": [{"role": "system", "content": SYSTEM}, USER], "tools": [CHAT_TOOL]},
    ],
    ids=["plain", "system and tools"],
)
def test_a_chats_count_is_its_usage(proxy: Proxy, client: openai.OpenAI, body: dict[str, Any]) -> None:
    count = post(proxy, "/utils/token_counter", **body).json()
    usage = client.chat.completions.create(model="tiny", **body).usage  # type: ignore[call-overload]
    assert count["total_tokens"] == usage.prompt_tokens
    assert (count["model_used"], count["count_source"]) == ("tiny", "provider")


def test_a_texts_count_is_its_usage(proxy: Proxy, client: openai.OpenAI) -> None:
    count = post(proxy, "/utils/token_counter", prompt="say: seven").json()["total_tokens"]
    usage = client.completions.create(model="tiny", prompt="say: seven").usage
    assert usage is not None
    assert count == usage.prompt_tokens


RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "warm"}]}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER]},
        {"messages": [USER], "system": SYSTEM, "tools": [MESSAGES_TOOL], "thinking": {"type": "disabled"}},
        {
            "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            "tools": [MESSAGES_TOOL],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]},
                {"role": "user", "content": [RESULT, {"type": "text", "text": "say: eight"}]},
            ],
        },
    ],
    ids=["plain", "system and tools", "blocks and results"],
)
def test_a_messages_count_is_its_usage(
    proxy: Proxy, anthropic_client: anthropic.Anthropic, body: dict[str, Any]
) -> None:
    count = anthropic_client.messages.count_tokens(model="tiny", **body).input_tokens
    usage = anthropic_client.messages.create(model="tiny", max_tokens=9, **body).usage
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    whole = post(proxy, "/v1/messages/count_tokens", **body).json()
    assert whole == {"input_tokens": count, "litellm_count_source": "provider"}


@pytest.mark.parametrize(
    "body",
    [
        {"input": "say: seven"},
        {"input": [USER], "instructions": SYSTEM, "tools": [RESPONSES_TOOL], "reasoning": {"effort": "low"}},
    ],
    ids=["plain", "instructions and tools"],
)
def test_a_responses_count_is_its_usage(client: openai.OpenAI, body: dict[str, Any]) -> None:
    count = client.responses.input_tokens.count(model="tiny", **body).input_tokens
    assert count == client.responses.create(model="tiny", **body).usage.input_tokens  # type: ignore[union-attr]


def test_what_is_counted_is_not_answered(proxy: Proxy) -> None:
    before = proxy.counter("tiny", "requests")
    assert post(proxy, "/v1/messages/count_tokens", messages=[USER]).status_code == 200
    assert proxy.counter("tiny", "requests") == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": 3}]}),
        ("/v1/messages/count_tokens", {"messages": [USER], "system": 3}),
        ("/v1/messages/count_tokens", {"messages": [USER], "thinking": "much"}),
        ("/v1/responses/input_tokens", {"input": [USER], "instructions": 3}),
        ("/utils/token_counter", {"messages": [{"role": "robot", "content": "x"}]}),
    ],
)
def test_what_cannot_be_answered_cannot_be_counted(proxy: Proxy, path: str, body: dict[str, Any]) -> None:
    answer = post(proxy, path, **body)
    assert answer.status_code == 400, answer.text
    assert "Traceback" not in answer.text


def test_another_providers_tokens_are_litellms_to_count(proxy: Proxy) -> None:
    answer = post(proxy, "/utils/token_counter", model="mock", messages=[USER])
    assert answer.status_code == 200, answer.text
    assert answer.json()["count_source"] == "local_estimate"
