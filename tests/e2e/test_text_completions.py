"""/v1/completions: the prompt as it is, no chat, through a real proxy."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from proxy_process import MOCK_ANSWER, Proxy


def tokens(text: str) -> list[int]:
    """The fake engine's."""
    return list(text.encode())


def post(proxy: Proxy, **body: Any) -> httpx.Response:
    body = {"model": "tiny", **body}
    return httpx.post(f"{proxy.base_url}/v1/completions", json=body, headers=proxy.headers, timeout=30)


def streamed(client: openai.OpenAI, **request: Any) -> list[openai.types.Completion]:
    request = {"model": "tiny", "stream_options": {"include_usage": True}, **request}
    return list(client.completions.create(stream=True, **request))  # type: ignore[call-overload]


@pytest.mark.parametrize("prompt", ["say: seven", tokens("say: seven"), ["say: seven"], [tokens("say: seven")]])
def test_a_prompt_is_not_wrapped_into_a_chat(client: openai.OpenAI, prompt: Any) -> None:
    answer = client.completions.create(model="tiny", prompt=prompt)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [(0, "seven", "stop")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len("say: seven"), len("seven"))
    assert (answer.object, answer.model) == ("text_completion", "tiny")
    assert answer.id.startswith("cmpl-")
    chunks = streamed(client, prompt=prompt)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "seven"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["stop"]
    assert [chunk.usage.prompt_tokens for chunk in chunks if chunk.usage] == [len("say: seven")]


@pytest.mark.parametrize("as_tokens", [False, True], ids=["texts", "token ids"])
def test_several_prompts_and_copies_come_in_openais_order(client: openai.OpenAI, as_tokens: bool) -> None:
    texts = ["say: one", "say: twoo", "say: three"]
    prompt: Any = [tokens(text) for text in texts] if as_tokens else texts
    expected = ["one", "one", "twoo", "twoo", "three", "three"]
    whole = client.completions.create(model="tiny", prompt=prompt, n=2)
    assert [(choice.index, choice.text) for choice in whole.choices] == list(enumerate(expected))
    chunks = streamed(client, prompt=prompt, n=2)
    found = dict.fromkeys(range(6), "")
    reasons = []
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        found[choice.index] += choice.text
        reasons += [(choice.index, choice.finish_reason)] * (choice.finish_reason is not None)
    assert list(found.values()) == expected
    assert sorted(reasons) == [(index, "stop") for index in range(6)]
    for usage in (whole.usage, next(chunk.usage for chunk in reversed(chunks) if chunk.usage)):
        assert usage is not None
        assert usage.prompt_tokens == sum(map(len, texts))
        assert usage.completion_tokens == sum(map(len, expected))


def test_logprobs_have_this_routes_own_form_whole_and_streamed(client: openai.OpenAI) -> None:
    request = {"model": "tiny", "prompt": "say: abc", "logprobs": 2}
    whole = client.completions.create(**request).choices[0].logprobs  # type: ignore[call-overload]
    assert whole.tokens == ["a", "b", "c"]
    assert whole.text_offset == [0, 1, 2]
    assert all(logprob <= 0 for logprob in whole.token_logprobs)
    for token, top in zip(whole.tokens, whole.top_logprobs, strict=True):
        assert token in top
        assert len(top) <= 3
    pieces = [choice.logprobs for chunk in streamed(client, **request) for choice in chunk.choices if choice.logprobs]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for piece in pieces for value in getattr(piece, field)] == getattr(whole, field)


def test_without_logprobs_there_are_none(client: openai.OpenAI) -> None:
    assert client.completions.create(model="tiny", prompt="say: abc").choices[0].logprobs is None
    assert not any(choice.logprobs for chunk in streamed(client, prompt="say: abc") for choice in chunk.choices)


def test_usage_is_streamed_where_it_is_asked_for_alone(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="tiny", prompt="say: abc", stream=True))
    assert not any(chunk.usage for chunk in chunks)


def test_the_sampling_parameters_are_the_chats(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="say: seven", max_tokens=3)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("sev", "length")
    answer = client.completions.create(model="tiny", prompt="say: seven", stop=["x", "v"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("se", "stop")


def test_a_long_prompt_is_found_in_the_cache(client: openai.OpenAI) -> None:
    prompt = "Once upon a time. " * 40 + "\nsay: seven"
    for cached in (0, len(prompt) // 256 * 256):
        usage = client.completions.create(model="tiny", prompt=prompt).usage
        assert usage is not None
        details = usage.prompt_tokens_details
        assert (details.cached_tokens if details else 0) == cached


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "must be a string"),
        ({"prompt": ""}, "prompt", "is empty"),
        ({"prompt": []}, "prompt", "not empty"),
        ({"prompt": {}}, "prompt", "must be"),
        ({"prompt": [[]]}, "prompt[0]", "a list of token ids"),
        ({"prompt": ["x", ""]}, "prompt[1]", "is empty"),
        ({"prompt": [-1]}, "prompt[0]", "must be"),
        ({"prompt": "x", "echo": True}, "echo", "not supported"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
        ({"prompt": "x", "best_of": 3}, "best_of", "not ranked"),
        ({"prompt": "x", "logprobs": 6}, "logprobs", "at most 5"),
        ({"prompt": "x", "n": 1000}, "n", "at most"),
        ({"prompt": "x", "tools": []}, "tools", "/v1/chat/completions"),
        ({"prompt": "x" * 9000}, "prompt", "8192"),
        ({"prompt": [256] * 3}, None, "token ids"),
    ],
)
def test_a_bad_request_says_what_to_change(proxy: Proxy, stream: bool, body: Any, param: str | None, says: str) -> None:
    answer = post(proxy, stream=stream, **body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param
    assert "Traceback" not in answer.text


def test_another_providers_completion_is_left_alone(proxy: Proxy, client: openai.OpenAI) -> None:
    answer = client.completions.create(model="mock", prompt="hi")
    assert answer.choices[0].text == MOCK_ANSWER
    assert post(proxy, prompt=tokens("say: after")).json()["choices"][0]["text"] == "after"
