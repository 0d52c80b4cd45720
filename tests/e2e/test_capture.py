"""What the proxy learns from traffic, and what it must not."""

from __future__ import annotations

import secrets
from typing import Any

import anthropic
import openai
import pytest
from proxy_process import MOCK_ANSWER, Proxy

TOOLS = [{"type": "function", "function": {"name": "f", "description": "Adds.", "parameters": {"type": "object"}}}]


def new_head(nonce: str = "") -> str:
    """A system prompt that no other test has, with a line of Claude Code's kind before it where wanted."""
    line = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={nonce};\n" if nonce else ""
    return f"{line}You are agent {secrets.token_hex(8)}. " + "Rule: be kind. " * 60


def say(client: openai.OpenAI, head: str, model: str = "tiny", **fields: Any) -> openai.types.chat.ChatCompletion:
    messages = [{"role": "system", "content": head}, {"role": "user", "content": f"{secrets.token_hex(4)}\nsay: ok"}]
    return client.chat.completions.create(model=model, messages=messages, **fields)  # type: ignore[call-overload, no-any-return]


def captured(proxy: Proxy, model: str = "tiny") -> dict[str, int]:
    counts: dict[str, int] = proxy.stats()["capture"]["models"][model]
    return counts


def state_bytes(proxy: Proxy) -> bytes:
    return b"".join(path.read_bytes() for path in (proxy.folder / "state").rglob("*") if path.is_file())


def wait_written(proxy: Proxy, text: str) -> None:
    proxy.wait_until(lambda: text.encode() in state_bytes(proxy), 5, "the head to be on disk")


def test_the_second_conversation_captures_a_head(proxy: Proxy, client: openai.OpenAI) -> None:
    head, before = new_head(), captured(proxy)["captured"]
    say(client, head)
    assert captured(proxy)["captured"] == before
    say(client, head)
    assert captured(proxy)["captured"] == before + 1
    say(client, head)
    assert captured(proxy)["captured"] == before + 1
    wait_written(proxy, head[:40])


def test_a_streamed_chat_counts_as_well(proxy: Proxy, client: openai.OpenAI) -> None:
    head, before = new_head(), captured(proxy)["captured"]
    for _ in range(2):
        list(say(client, head, stream=True))
    assert captured(proxy)["captured"] == before + 1


def test_a_changing_nonce_is_one_head_and_is_hit(proxy: Proxy, client: openai.OpenAI) -> None:
    rest, before = new_head(), captured(proxy)["captured"]
    answers = [say(client, new_head(nonce).partition("\n")[0] + "\n" + rest) for nonce in ("a1f", "9c2", "77b")]
    assert captured(proxy)["captured"] == before + 1
    for answer in answers[1:]:
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens >= len(rest) // 256 * 256
    wait_written(proxy, rest[:40])
    assert b"cch=" not in state_bytes(proxy)


def test_claude_codes_changing_block_is_one_head_and_is_hit(
    proxy: Proxy, anthropic_client: anthropic.Anthropic
) -> None:
    rest, before = new_head(), captured(proxy)["captured"]
    cached = []
    for nonce in ("a1f", "9c2", "77b"):
        line = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={nonce};"
        message = anthropic_client.messages.create(
            model="tiny",
            max_tokens=9,
            system=[{"type": "text", "text": line}, {"type": "text", "text": rest}],
            messages=[{"role": "user", "content": "say: ok"}],
        )
        cached.append(message.usage.cache_read_input_tokens or 0)
    assert captured(proxy)["captured"] == before + 1
    assert cached[0] < 256
    assert min(cached[1:]) >= len(rest) // 256 * 256


def test_tools_in_another_key_order_are_one_head(proxy: Proxy, client: openai.OpenAI) -> None:
    head, before = new_head(), captured(proxy)
    function = TOOLS[0]["function"]
    assert isinstance(function, dict)
    reordered = [{"function": dict(reversed(function.items())), "type": "function"}]
    say(client, head, tools=TOOLS)
    say(client, head, tools=reordered)
    assert captured(proxy)["captured"] == before["captured"] + 1
    say(client, head, tools=[{"type": "function", "function": {**function, "description": "Subtracts."}}])
    assert captured(proxy)["tracked"] == before["tracked"] + 2


def test_an_anthropic_client_has_its_head_captured(proxy: Proxy, anthropic_client: anthropic.Anthropic) -> None:
    head, before = new_head(), captured(proxy)["captured"]
    for _ in range(2):
        anthropic_client.messages.create(
            model="tiny",
            max_tokens=9,
            system=[{"type": "text", "text": head, "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": "say: ok"}],
        )
    assert captured(proxy)["captured"] == before + 1
    wait_written(proxy, head[:40])


def test_a_responses_client_has_its_head_captured(proxy: Proxy, client: openai.OpenAI) -> None:
    head, before = new_head(), captured(proxy)["captured"]
    for _ in range(2):
        list(client.responses.create(model="tiny", instructions=head, input="say: ok", stream=True))
    assert captured(proxy)["captured"] == before + 1


def test_a_head_is_one_whichever_route_brings_it(
    proxy: Proxy, client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    head, before = new_head(), captured(proxy)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    function = {"name": "f", "description": "Adds.", "parameters": schema}
    usages: list[Any] = [
        say(client, head, tools=[{"type": "function", "function": function}], reasoning_effort="low").usage,
        anthropic_client.messages.create(
            model="tiny",
            max_tokens=9,
            system=[{"type": "text", "text": head, "cache_control": {"type": "ephemeral"}}],
            tools=[{"name": "f", "description": "Adds.", "input_schema": schema}],
            messages=[{"role": "user", "content": "say: ok"}],
            extra_body={"output_config": {"effort": "low"}},
        ).usage,
        client.responses.create(
            model="tiny",
            instructions=head,
            tools=[{"type": "function", "strict": None, **function}],
            reasoning={"effort": "low"},
            input="say: ok",
        ).usage,
    ]
    after = captured(proxy)
    assert after["tracked"] == before["tracked"] + 1
    assert after["captured"] == before["captured"] + 1
    cached = [usages[1].cache_read_input_tokens, usages[2].input_tokens_details.cached_tokens]
    assert min(cached) >= len(head) // 256 * 256


@pytest.mark.parametrize(
    "how",
    [
        {"extra_body": {"no-log": True}},
        {"extra_headers": {"x-litellm-enable-message-redaction": "true"}},
        {"extra_headers": {"litellm-enable-message-redaction": "true"}},
    ],
    ids=["no-log", "redaction header", "old redaction header"],
)
def test_a_request_that_asks_for_it_leaves_no_trace(proxy: Proxy, client: openai.OpenAI, how: dict[str, Any]) -> None:
    head, before = new_head(), captured(proxy)
    for _ in range(3):
        say(client, head, **how)
    assert captured(proxy) == before
    seen = new_head()
    for _ in range(2):
        say(client, seen)
    wait_written(proxy, seen[:40])  # so the store has written since
    assert head[:40].encode() not in state_bytes(proxy)


def test_no_log_counts_on_the_other_routes_too(
    proxy: Proxy, client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    head, before = new_head(), captured(proxy)
    messages = [{"role": "user", "content": "say: ok"}]
    for _ in range(2):
        request: dict[str, Any] = {"model": "tiny", "extra_body": {"no-log": True}}
        anthropic_client.messages.create(max_tokens=9, system=head, messages=messages, **request)
        client.responses.create(instructions=head, input="say: ok", **request)
    assert captured(proxy) == before


def test_a_model_whose_capture_is_off_counts_nothing(proxy: Proxy, client: openai.OpenAI) -> None:
    head = new_head()
    for _ in range(3):
        say(client, head, model="private")
    counts = captured(proxy, "private")
    assert (counts["captured"], counts["tracked"], counts["sightings"]) == (0, 0, 0)


def test_the_same_head_to_another_provider_arrives_unedited_and_uncounted(proxy: Proxy, client: openai.OpenAI) -> None:
    head, before = new_head("a1f"), captured(proxy)
    answer = say(client, head, model="mock")
    assert answer.choices[0].message.content == MOCK_ANSWER
    assert captured(proxy) == before
    assert proxy.get("/test/last_mock_messages")[0]["content"] == head


def test_a_refused_request_captures_nothing(proxy: Proxy, client: openai.OpenAI) -> None:
    head, before = new_head(), captured(proxy)["captured"]
    for _ in range(3):
        with pytest.raises(openai.BadRequestError):
            say(client, head, temperature=-1)
    assert captured(proxy)["captured"] == before


def test_files_of_the_store_are_the_owners_alone(proxy: Proxy) -> None:
    folder = proxy.folder / "state"
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*"))
