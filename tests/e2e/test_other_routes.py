"""/v1/messages and /v1/responses lead to the same model."""

from __future__ import annotations

import anthropic
import openai

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
