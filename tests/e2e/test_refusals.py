"""Bad requests get one OpenAI-shaped error that says what to change: no retry, no traceback."""

from __future__ import annotations

import time
from typing import Any

import anthropic
import httpx
import openai
import pytest
from proxy_process import Proxy

USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def post(proxy: Proxy, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [USER], **body}
    return httpx.post(f"{proxy.base_url}{path}", json=body, headers=proxy.headers, timeout=30)


def refused(proxy: Proxy, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error's body, the same streamed or not, after checking that the model never ran."""
    before = proxy.counter("tiny", "requests")
    began = time.monotonic()
    whole, streamed = post(proxy, **body), post(proxy, **{**body, "stream": True})
    assert time.monotonic() - began < 2  # LiteLLM waits at least half a second before it tries again
    errors = []
    for answer in (whole, streamed):
        assert answer.status_code == status, answer.text
        assert "Traceback" not in answer.text
        assert "Retried" not in answer.text
        errors.append(answer.json()["error"])
    assert errors[0] == errors[1]
    assert proxy.counter("tiny", "requests") == before
    error: dict[str, Any] = errors[0]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["code"] == str(status)
    return error


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": "hello"}, "messages", "a list, not a string"),
        ({"messages": [3]}, "messages[0]", "must be an object"),
        ({"messages": [{}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "must be one of"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a string or a list"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0].type", "'text'"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type", "'text'"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]", "text only, not images"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"temperature": "hot"}, "temperature", "not a string"),
        ({"top_p": 2}, "top_p", "at most 1"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"stop": [""]}, "stop", "empty string"),
        ({"stop": [*"ABCDEFGHIJKLMNOPQ"]}, "stop", "at most 16 strings; it holds 17"),
        ({"timeout": -1}, "timeout", "a positive number of seconds"),
        ({"top_k": 1.5}, "top_k", "an integer"),
        ({"n": 1000}, "n", "at most"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"tool_choice": "required"}, "tool_choice", "send tools"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort", "one of none, minimal, low"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
        ({"response_format": "json"}, "response_format", "an object"),
        ({"timeout": "soon"}, "timeout", "a number of seconds"),
        ({"custom_llm_provider": "openai"}, "custom_llm_provider", "remove it"),
        ({"temprature": 1}, "temprature", "Did you mean temperature?"),
    ],
)
def test_a_bad_request_says_what_to_change(proxy: Proxy, body: dict[str, Any], param: str, says: str) -> None:
    error = refused(proxy, **body)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert says in error["message"]


def test_the_last_of_many_stop_strings_stops(proxy: Proxy) -> None:
    answer = post(proxy, messages=[{"role": "user", "content": "say: seven"}], stop=[*"ABCDEFGHIJKLMNO", "v"])
    assert answer.json()["choices"][0]["message"]["content"] == "se"


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_header_that_can_be_no_timeout(proxy: Proxy, seconds: str) -> None:
    headers = {**proxy.headers, "x-litellm-timeout": seconds}
    body = {"model": "tiny", "messages": [USER]}
    answer = httpx.post(f"{proxy.base_url}/v1/chat/completions", json=body, headers=headers, timeout=30)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")


def test_a_message_without_a_role(proxy: Proxy) -> None:
    answer = post(proxy, "/v1/messages", messages=[{"content": "hi"}], max_tokens=5)
    assert answer.status_code == 400
    assert "messages[0].role" in answer.text


def test_a_part_whose_type_is_no_text(proxy: Proxy) -> None:
    answer = post(proxy, "/v1/responses", input=[{"role": "user", "content": [{"type": ["input_text"], "text": "hi"}]}])
    assert answer.status_code == 400
    assert "input[0].content[0].type" in answer.text
    assert "Traceback" not in answer.text


def test_a_prompt_longer_than_the_context(proxy: Proxy) -> None:
    error = refused(proxy, messages=[{"role": "user", "content": "x" * 9000}])
    assert "ContextWindowExceededError" in error["message"]
    assert "8192" in error["message"]
    assert error["provider_specific_fields"]["code"] == "context_length_exceeded"


def test_an_embedding_is_refused_with_who_makes_them(proxy: Proxy, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"make no embeddings.*infinity"):
        client.embeddings.create(model="tiny", input="hi")


def test_an_alias_that_nobody_configured_is_litellms_own_400(proxy: Proxy) -> None:
    assert post(proxy, model="nonsense").status_code == 400


def test_no_key_is_401(proxy: Proxy) -> None:
    answer = httpx.post(f"{proxy.base_url}/v1/chat/completions", json={"model": "tiny", "messages": [USER]})
    assert answer.status_code == 401


def test_engine_settings_in_a_request_have_no_effect(client: openai.OpenAI, proxy: Proxy) -> None:
    body = {"model_dir": "/etc", "cache_size": 1, "max_seq_len": 16, "engine": "cpu"}
    request = {"model": "tiny", "messages": [{"role": "user", "content": "say: ok"}]}
    assert client.chat.completions.create(**request, extra_body=body).choices[0].message.content == "ok"  # type: ignore[call-overload]
    assert proxy.stats("tiny")["state"] == "ready"


def test_a_fault_in_one_job_is_a_500_once_and_the_model_goes_on(proxy: Proxy, client: openai.OpenAI) -> None:
    before = proxy.counter("tiny", "requests")
    for stream in (False, True):
        answer = post(proxy, messages=[{"role": "user", "content": "fault: job"}], stream=stream)
        assert answer.status_code == 500, answer.text
        assert "Traceback" not in answer.text
    assert proxy.counter("tiny", "requests") == before + 2
    request = {"model": "tiny", "messages": [{"role": "user", "content": "say: on"}]}
    assert client.chat.completions.create(**request).choices[0].message.content == "on"  # type: ignore[call-overload]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_anthropic_client_gets_its_own_shape_of_error(anthropic_client: anthropic.Anthropic, stream: bool) -> None:
    messages = [{"role": "user", "content": "x" * 9000}]
    with pytest.raises(anthropic.BadRequestError) as caught:
        anthropic_client.messages.create(model="tiny", max_tokens=9, messages=messages, stream=stream)  # type: ignore[call-overload]
    assert "8192" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": "x"}),
        ("/v1/messages", {"messages": []}),
        ("/v1/messages", {"messages": [3]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": ["x"]}]}),
        ("/v1/messages", {"tool_choice": "x"}),
        ("/v1/messages", {"thinking": 3}),
        ("/v1/responses", {"input": 3}),
        ("/v1/responses", {"input": [3]}),
        ("/v1/responses", {"input": [{"role": "user", "content": 3}]}),
    ],
)
def test_malformed_bodies_of_other_routes_are_400_at_once(proxy: Proxy, path: str, body: dict[str, Any]) -> None:
    began = time.monotonic()
    answer = post(proxy, path, **{"max_tokens": 5, **body})
    assert answer.status_code == 400, answer.text
    assert "Traceback" not in answer.text
    assert time.monotonic() - began < 1


def test_the_log_holds_neither_prompts_nor_keys(proxy: Proxy) -> None:
    post(proxy, messages=[{"role": "user", "content": "fault: job open-sesame-7141"}])
    post(proxy, messages=[{"role": "user", "content": "open-sesame-7141"}], temperature="open-sesame-7141")
    post(proxy, messages=[{"role": "user", "content": ["open-sesame-7141", {"type": "hologram"}]}])
    assert "open-sesame-7141" not in proxy.log
    assert proxy.master_key not in proxy.log
