"""/v1/messages and /v1/responses lead to the same model."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest
from proxy_process import Proxy

SYSTEM = "You are terse. " + "Rule: be kind. " * 60


def test_an_anthropic_message_whole_and_streamed(anthropic_client: anthropic.Anthropic) -> None:
    request = {
        "model": "tiny",
        "max_tokens": 50,
        "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "say: seven"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    }
    anthropic_client.messages.create(**request)  # type: ignore[call-overload]
    whole = anthropic_client.messages.create(**request)  # type: ignore[call-overload]
    assert whole.content[0].text == "seven"
    assert whole.stop_reason == "end_turn"
    assert whole.usage.output_tokens == len("seven")
    assert whole.usage.cache_read_input_tokens >= 768
    with anthropic_client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].text == "seven"
    assert streamed.usage.cache_read_input_tokens == whole.usage.cache_read_input_tokens


def test_an_anthropic_stop_sequence_and_limit(anthropic_client: anthropic.Anthropic) -> None:
    message = anthropic_client.messages.create(
        model="tiny", max_tokens=3, messages=[{"role": "user", "content": "say: seven"}], stop_sequences=["x"]
    )
    assert (message.content[0].text, message.stop_reason) == ("sev", "max_tokens")


def test_every_anthropic_stop_sequence_counts(anthropic_client: anthropic.Anthropic) -> None:
    message = anthropic_client.messages.create(
        model="tiny", max_tokens=9, messages=[{"role": "user", "content": "say: seven"}], stop_sequences=[*"ABCDEv"]
    )
    assert message.content[0].text == "se"


def test_a_response_whole_and_streamed(client: openai.OpenAI) -> None:
    request = {"model": "tiny", "instructions": SYSTEM, "input": "say: seven"}
    whole = client.responses.create(**request)  # type: ignore[call-overload]
    assert whole.output_text == "seven"
    assert whole.usage.output_tokens == len("seven")
    events = list(client.responses.create(**request, stream=True))  # type: ignore[call-overload]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "seven"


SAY = [{"role": "user", "content": "say: seven"}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAY, "reasoning_effort": "low", "verbosity": "low"}),
        ("/v1/chat/completions", {"messages": SAY, "thinking": THINKING, "context_management": []}),
        ("/v1/messages", {"messages": SAY, "max_tokens": 2000, "thinking": THINKING}),
        ("/v1/messages", {"messages": SAY, "max_tokens": 2000, "thinking": {"type": "adaptive"}}),
        ("/v1/messages", {"messages": SAY, "max_tokens": 99, "output_config": {"effort": "max"}}),
        ("/v1/responses", {"input": "say: seven", "reasoning": {"effort": "high", "summary": "auto"}}),
        ("/v1/responses", {"input": "say: seven", "text": {"verbosity": "high"}}),
    ],
)
def test_no_route_refuses_how_much_an_answer_may_think(proxy: Proxy, path: str, body: dict[str, Any]) -> None:
    for stream in (False, True):
        answer = httpx.post(
            f"{proxy.base_url}{path}",
            json={"model": "tiny", "stream": stream, **body},
            headers=proxy.headers,
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        assert stream or "seven" in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAY, "thinking": {"type": "enabled", "budget_tokens": -1}}),
        ("/v1/chat/completions", {"messages": SAY, "verbosity": "shouting"}),
        ("/v1/messages", {"messages": SAY, "max_tokens": 99, "thinking": {"type": "enabled", "budget_tokens": -1}}),
        ("/v1/responses", {"input": "say: seven", "text": {"verbosity": "shouting"}}),
    ],
)
def test_what_a_body_alone_tells_is_checked_as_well(proxy: Proxy, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{proxy.base_url}{path}", json={"model": "tiny", **body}, headers=proxy.headers, timeout=30)
    assert answer.status_code == 400, answer.text


def test_allowed_tools_are_no_trouble(client: openai.OpenAI) -> None:
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "g")]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    request = {"model": "tiny", "input": "say: seven", "tools": tools, "tool_choice": choice}
    assert client.responses.create(**request).output_text == "seven"  # type: ignore[call-overload]
