"""The `openai` client against real weights."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from demo_chats import COUNT
from proxy_process import Proxy, openai_client
from pydantic import BaseModel, Field
from real_tools import OPENAI_TOOLS, QUESTION, RESPONSES_TOOLS, is_valid_call

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

CHAT: dict[str, Any] = {
    "model": "local",
    "messages": [{"role": "user", "content": COUNT}],
    "max_tokens": 16,
    "temperature": 0,
}
CALL: dict[str, Any] = {
    "model": "local",
    "messages": [{"role": "user", "content": QUESTION}],
    "tools": OPENAI_TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 64,
    "temperature": 0,
}


class Forecast(BaseModel):
    """A structured answer without room to ramble."""

    city: Literal["Oslo", "Lima", "Cairo"]
    is_rainy: bool
    degrees: int = Field(ge=-20, le=40)


@pytest.fixture(scope="module")
def client(real_proxy: Proxy) -> openai.OpenAI:
    return openai_client(real_proxy)


def test_a_streamed_answer_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT)
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 16


def test_a_required_call_is_made_with_valid_arguments_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CALL).choices[0]
    (call,) = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    assert is_valid_call(call.function.name, call.function.arguments)
    with client.chat.completions.stream(**CALL) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    assert len(pieces) > 2


def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "choose_clothes"}}
    answer = client.chat.completions.create(**{**CALL, "tool_choice": choice})
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["choose_clothes"]


def test_without_a_choice_of_tools_there_is_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**{**CALL, "tool_choice": "none", "max_tokens": 24}).choices[0]
    assert answer.message.tool_calls is None
    assert answer.message.content
    assert "<tool_call>" not in answer.message.content


def test_a_structured_answer_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="local",
        messages=[{"role": "user", "content": "Make up a forecast as JSON."}],
        response_format=Forecast,
        max_tokens=64,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Forecast)


def test_a_regular_expression_is_kept(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT, extra_body={"regex": "[0-9]{3}-[a-f]{2}"})
    text = answer.choices[0].message.content
    assert len(text) == 6
    assert text[3] == "-"
    assert answer.choices[0].finish_reason == "stop"


def test_several_choices_share_one_prompt(client: openai.OpenAI) -> None:
    alone = client.chat.completions.create(**CHAT)
    answer = client.chat.completions.create(**{**CHAT, "n": 3, "temperature": 1.0, "seed": 7})
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert answer.usage.completion_tokens == 48


def test_probabilities_of_the_tokens_come_with_them(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2).choices[0]
    tokens = answer.logprobs.content
    assert "".join(token.token for token in tokens) == answer.message.content
    assert all(token.top_logprobs[0].token == token.token for token in tokens)
    assert all(token.logprob <= 0 for token in tokens)


def test_a_raw_prompt_goes_on_as_it_stands(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="local", prompt="One, two, three, four,", max_tokens=4, temperature=0)
    assert "five" in answer.choices[0].text
    assert answer.usage.prompt_tokens < 12


def test_a_response_whole_streamed_and_parsed(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "local", "input": COUNT, "max_output_tokens": 16, "temperature": 0}
    whole = client.responses.create(**request)
    events = list(client.responses.create(**request, stream=True))
    assert whole.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    parsed = client.responses.parse(
        model="local", input="Make up a forecast as JSON.", text_format=Forecast, max_output_tokens=64
    )
    assert isinstance(parsed.output_parsed, Forecast)


def test_a_response_calls_a_tool(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="local",
        input=QUESTION,
        tools=RESPONSES_TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=64,
        temperature=0,
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert is_valid_call(call.name, call.arguments)


def test_an_agent_calls_two_tools_and_finishes(client: openai.OpenAI) -> None:
    """The calls by name, since a model of this size does not decide well."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    results = {"get_weather": "rain all week", "choose_clothes": "a raincoat"}
    for name in results:
        choice = {"type": "function", "function": {"name": name}}
        said = client.chat.completions.create(**{**CALL, "messages": messages, "tool_choice": choice}).choices[0]
        messages.append(said.message.model_dump(exclude_none=True))
        for call in said.message.tool_calls:
            assert is_valid_call(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[call.function.name]})
    last = client.chat.completions.create(**{**CALL, "messages": messages, "tool_choice": "none", "max_tokens": 24})
    assert last.choices[0].message.content
    assert last.usage.prompt_tokens_details.cached_tokens > 0.5 * last.usage.prompt_tokens
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"])["city"] in ("Oslo", "Lima", "Cairo")
