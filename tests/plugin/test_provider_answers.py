"""What an answer is to a client of LiteLLM: calls, reasoning, probabilities, several choices, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import litellm
import pytest
import yaml
from litellm.utils import custom_llm_setup

from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3 import running_gateway
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.provider import handler

MODEL = {"model_dir": "demo", "tool_format": "hermes", "reasoning": "on", "max_batch_size": 4}
SETTINGS = {
    "model_list": [{"model_name": "local", "litellm_params": {"model": "exllamav3/tiny"}}],
    "litellm_settings": {
        "custom_provider_map": [{"provider": "exllamav3", "custom_handler": "litellm_exllamav3.provider.handler"}]
    },
    "exllamav3_settings": {"models": {"tiny": {"engine": "fake", "load": "lazy", "model": MODEL}}},
}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
LOOK = {"type": "function", "function": {"name": "look"}}
TWO_CALLS = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)
SEVERAL_PIECES = 0.002
"""Seconds between tokens, so that a stream is not merged into one piece."""


@pytest.fixture(autouse=True)
async def gateway(tmp_path: Path) -> AsyncIterator[None]:
    async def load(name: str, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        return FakeEngine(settings, seconds_per_token=SEVERAL_PIECES)

    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    custom_llm_setup()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(SETTINGS))
    gateway = Gateway.open(config, {}, load_engine=load)
    running_gateway.start(gateway)
    yield
    await gateway.stop()


def ask(says: str, **fields: Any) -> Awaitable[Any]:
    content = f"say: {json.dumps(says)}"
    request = {"model": "exllamav3/tiny", "messages": [{"role": "user", "content": content}], **fields}
    return litellm.acompletion(**request)


async def ask_stream(says: str, **fields: Any) -> list[Any]:
    stream = await ask(says, stream=True, stream_options={"include_usage": True}, **fields)
    return [chunk async for chunk in stream]


def finish_reasons(chunks: list[Any]) -> dict[int, str]:
    return {choice.index: choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason}


def usages(chunks: list[Any]) -> list[Any]:
    return [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]


async def test_calls_are_a_message_without_content() -> None:
    answer = await ask(TWO_CALLS, tools=[ADD, LOOK])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("add", {"a": 1}), ("look", {})]
    assert len({call.id for call in choice.message.tool_calls}) == 2


async def test_calls_are_streamed_name_first_and_arguments_in_pieces() -> None:
    chunks = await ask_stream(TWO_CALLS, tools=[ADD, LOOK])
    pieces = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    names = [(piece.index, piece.function.name) for piece in pieces if piece.id]
    assert names == [(0, "add"), (1, "look")]
    assert json.loads("".join(piece.function.arguments for piece in pieces if piece.index == 0)) == {"a": 1}
    assert json.loads("".join(piece.function.arguments for piece in pieces if piece.index == 1)) == {}
    assert not any(choice.delta.content for chunk in chunks for choice in chunk.choices)
    assert finish_reasons(chunks) == {0: "tool_calls"}


async def test_a_call_that_a_stop_string_cuts_is_none_to_carry_out() -> None:
    (choice,) = (await ask(TWO_CALLS.replace("1", '"}1}"'), tools=[ADD, LOOK], stop="1}")).choices
    assert choice.finish_reason == "length"
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"a": "}']


async def test_without_tools_what_looks_like_a_call_is_text() -> None:
    assert (await ask(TWO_CALLS)).choices[0].message.content == TWO_CALLS


async def test_reasoning_stands_beside_the_content() -> None:
    message = (await ask("<think>\nhm\n</think>\n\nyes")).choices[0].message
    assert (message.reasoning_content.strip(), message.content) == ("hm", "yes")


async def test_reasoning_is_streamed_beside_the_content() -> None:
    deltas = [choice.delta for chunk in await ask_stream("<think>hm</think>yes") for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
    assert "".join(delta.content or "" for delta in deltas) == "yes"


async def test_probabilities_come_whole_and_streamed() -> None:
    whole = (await ask("hi", logprobs=True, top_logprobs=2)).choices[0].logprobs.content
    assert [token.token for token in whole] == ["h", "i"]
    assert [len(token.top_logprobs) for token in whole] == [2, 2]
    chunks = await ask_stream("hi", logprobs=True, top_logprobs=2)
    streamed = [
        token
        for chunk in chunks
        for choice in chunk.choices
        if getattr(choice, "logprobs", None) is not None
        for token in choice.logprobs.content
    ]
    assert [token.model_dump() for token in streamed] == [token.model_dump() for token in whole]
    assert whole[0].bytes == [104]


async def test_several_choices_count_the_prompt_once() -> None:
    one = await ask("hello")
    answer = await ask("hello", n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(i, "hello") for i in range(3)]
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert answer.usage.completion_tokens == 3 * one.usage.completion_tokens


async def test_several_choices_are_streamed_each_to_its_reason() -> None:
    chunks = await ask_stream("hello", n=3)
    texts = {0: "", 1: "", 2: ""}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    assert texts == dict.fromkeys(range(3), "hello")
    assert finish_reasons(chunks) == dict.fromkeys(range(3), "stop")
    assert [usage.completion_tokens for usage in usages(chunks)] == [15]


async def test_more_choices_than_the_batch_holds_are_refused() -> None:
    with pytest.raises(litellm.BadRequestError, match="n must be at most 4") as caught:
        await ask("hello", n=5)
    assert caught.value.param == "n"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_demanded_call_without_tools_is_refused(stream: bool) -> None:
    with pytest.raises(litellm.BadRequestError, match="send tools"):
        async for _ in await ask("hello", tool_choice="required", stream=stream):
            pass


async def test_reasoning_parameters_pass_where_litellm_is_told_that_they_may() -> None:
    answer = await ask("hello", reasoning_effort="low", allowed_openai_params=["reasoning_effort"])
    assert answer.choices[0].message.content == "hello"


@pytest.mark.parametrize(
    ("call", "fields", "provider"),
    [
        (litellm.aembedding, {"input": ["a"]}, "infinity"),
        (litellm.aimage_generation, {"prompt": "a"}, "stability"),
    ],
)
async def test_another_call_says_which_providers_serve_it(call: Any, fields: dict[str, Any], provider: str) -> None:
    with pytest.raises(litellm.BadRequestError, match=f"(?s)exllamav3/tiny cannot serve this call.*{provider}"):
        await call(model="exllamav3/tiny", **fields)


def test_a_synchronous_embedding_is_refused_too() -> None:
    with pytest.raises(litellm.BadRequestError, match="make no embeddings"):
        litellm.embedding(model="exllamav3/tiny", input=["a"])
