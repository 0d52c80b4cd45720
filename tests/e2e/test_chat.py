"""What a client of /v1/chat/completions gets, through a real proxy."""

from __future__ import annotations

import openai
import pytest
from proxy_process import MOCK_ANSWER, Proxy

SYSTEM = {"role": "system", "content": "You are terse. " + "Rule: be kind. " * 60}


def ask(content: object) -> list[dict[str, object]]:
    return [SYSTEM, {"role": "user", "content": content}]


def stream(client: openai.OpenAI, **request: object) -> list[openai.types.chat.ChatCompletionChunk]:
    return list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **request))  # type: ignore[call-overload]


def text_of(chunks: list[openai.types.chat.ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_an_answer_comes_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ask("say: seven"), max_tokens=50)
    assert answer.choices[0].message.content == "seven"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")


def test_a_streamed_answer_is_the_same_text(client: openai.OpenAI) -> None:
    chunks = stream(client, model="tiny", messages=ask("say: seven and eight"))
    assert text_of(chunks) == "seven and eight"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["stop"]


def test_a_stream_has_one_id_and_one_date(client: openai.OpenAI) -> None:
    chunks = stream(client, model="tiny", messages=ask("say: " + "word " * 50))
    assert len({chunk.id for chunk in chunks}) == 1
    assert max(chunk.created for chunk in chunks) - min(chunk.created for chunk in chunks) <= 1


def test_two_streams_have_two_ids(client: openai.OpenAI) -> None:
    one, other = (stream(client, model="tiny", messages=ask("say: x"))[0].id for _ in range(2))
    assert one != other


def test_usage_is_the_engines_whole_and_streamed(client: openai.OpenAI) -> None:
    request = {"model": "tiny", "messages": ask("say: usage"), "max_tokens": 20}
    client.chat.completions.create(**request)  # type: ignore[call-overload]
    whole = client.chat.completions.create(**request).usage  # type: ignore[call-overload]
    streamed = next(chunk.usage for chunk in reversed(stream(client, **request)) if chunk.usage)
    for usage in (whole, streamed):
        assert usage.completion_tokens == len("usage")
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens > len(str(SYSTEM["content"]))
        # Whole pages of 256 tokens, and at least one token is always computed.
        assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 256 * 256
    assert whole.prompt_tokens == streamed.prompt_tokens


def test_max_tokens_ends_with_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ask("say: seven"), max_tokens=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("sev", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ask("say: one;two"), stop=[";"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one", "stop")


def test_an_empty_answer_is_still_a_stream(client: openai.OpenAI) -> None:
    chunks = stream(client, model="tiny", messages=ask("say: ;rest"), stop=";")
    assert text_of(chunks) == ""
    assert chunks[0].choices[0].delta.role == "assistant"
    assert any(choice.finish_reason == "stop" for chunk in chunks for choice in chunk.choices)


def test_seeds_reach_the_engine(client: openai.OpenAI) -> None:
    def answer(seed: int) -> str | None:
        request = {"model": "tiny", "messages": ask("anything"), "temperature": 1.0, "seed": seed}
        return client.chat.completions.create(**request).choices[0].message.content  # type: ignore[call-overload, no-any-return]

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_content_parts_and_a_tool_turn_are_rendered(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "You add."}]},
        {"role": "user", "content": [{"type": "text", "text": "add"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "user", "content": [{"type": "text", "text": "say: two"}]},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=tools)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "two"


def test_unicode_survives_both_ways(client: openai.OpenAI) -> None:
    text = "naïve 東京 🚀 \u2028 end"
    chunks = stream(client, model="tiny", messages=ask(f"say: {text}"))
    assert text_of(chunks) == text


def test_tokens_that_come_faster_than_the_proxy_sends_share_chunks_in_order(client: openai.OpenAI) -> None:
    text = " ".join(str(number) for number in range(600))
    chunks = stream(client, model="tiny", messages=ask(f"say: {text}"))
    assert text_of(chunks) == text
    assert len(chunks) < len(text) / 2


@pytest.mark.parametrize("params", [{"n": 1, "user": "u", "store": True}, {"tool_choice": "auto"}, {"logprobs": False}])
def test_parameters_that_ask_for_nothing_are_accepted(client: openai.OpenAI, params: dict[str, object]) -> None:
    client.chat.completions.create(model="tiny", messages=ask("say: ok"), **params)  # type: ignore[call-overload]


def test_local_sampling_parameters_come_through(client: openai.OpenAI) -> None:
    body = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "banned_strings": ["b"]}
    answer = client.chat.completions.create(model="tiny", messages=ask("say: abc"), extra_body=body)
    assert answer.choices[0].message.content == "ac"


def test_a_health_check_does_not_run_the_model(proxy: Proxy) -> None:
    before = proxy.counter("tiny", "requests")
    health = proxy.get("/health")
    assert {endpoint["model"] for endpoint in health["healthy_endpoints"]} >= {"exllamav3/tiny", "exllamav3/private"}
    assert proxy.counter("tiny", "requests") == before


def test_another_provider_answers_beside_ours(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="mock", messages=ask("say: not this"))
    assert answer.choices[0].message.content == MOCK_ANSWER


def test_several_choices_come_whole_and_streamed_and_count_the_prompt_once(client: openai.OpenAI) -> None:
    request = {"model": "tiny", "messages": ask("say: three"), "n": 3}
    whole = client.chat.completions.create(**request)  # type: ignore[call-overload]
    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in whole.choices] == [
        (index, "three", "stop") for index in range(3)
    ]
    chunks = stream(client, **request)
    texts, reasons = dict.fromkeys(range(3), ""), {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert texts == dict.fromkeys(range(3), "three")
    assert reasons == dict.fromkeys(range(3), "stop")
    streamed = next(chunk.usage for chunk in reversed(chunks) if chunk.usage)
    for usage in (whole.usage, streamed):
        assert usage.completion_tokens == 3 * len("three")
        assert usage.prompt_tokens < 2 * len(str(SYSTEM["content"]))


def test_probabilities_come_with_the_tokens_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "say: hi"}], logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [(token.token, token.bytes, len(token.top_logprobs)) for token in logprobs.content or ()] == [
        ("h", [104], 2),
        ("i", [105], 2),
    ]


def test_a_call_comes_in_openais_form(client: openai.OpenAI) -> None:
    call = '<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'.replace('"', '\\"')
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    request = {"model": "tiny", "messages": [{"role": "user", "content": f'say: "{call}"'}], "tools": [tool]}
    (choice,) = client.chat.completions.create(**request).choices  # type: ignore[call-overload]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert [call.function.name for call in choice.message.tool_calls] == ["add"]
    deltas = [choice.delta for chunk in stream(client, **request) for choice in chunk.choices]
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [piece.function.name for piece in pieces if piece.id] == ["add"]
    assert "".join(piece.function.arguments for piece in pieces).replace(" ", "") == '{"a":1}'
