"""A model of 135M parameters, held to calls and schemas that it would not keep to by itself: every answer is valid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from exllamav3_adapters.contract import (
    Chat,
    ChatAnswer,
    Finished,
    GenerationParams,
    Grammar,
    Text,
    Tool,
    ToolCallArguments,
    ToolCallStart,
    ToolUse,
)
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.registry import find_engine

NUM_ANSWERS = 50
NUM_ENDED = 45
"""Of those, how many must have come to their end within `MAX_TOKENS`."""
MAX_TOKENS = 300


def bounded(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def words(most: int = 30) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


def several(items: Any, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


SCHEMAS: dict[str, dict[str, Any]] = {
    "a city": bounded(
        city=words(20), people={"type": "integer", "minimum": 1, "maximum": 40_000_000}, coast={"type": "boolean"}
    ),
    "a recipe": bounded(title=words(), minutes={"enum": [10, 20, 30, 60]}, steps=several(words(40))),
    "a person": bounded(
        name=words(20),
        born={"type": "string", "format": "date"},
        mail={"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.org$"}]},
    ),
    "a shape": {
        "anyOf": [
            bounded(kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
            bounded(kind={"const": "box"}, sides={**several({"type": "integer", "minimum": 1, "maximum": 9}, 2)}),
        ]
    },
    "a tree": {
        "$defs": {
            "leaf": bounded(name=words(12), size={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50})
        },
        **bounded(root={"$ref": "#/$defs/leaf"}, leaves=several({"$ref": "#/$defs/leaf"}, 2)),
    },
}
QUESTIONS = {
    "a city": "Describe the city of Hamburg.",
    "a recipe": "How do I cook tomato soup?",
    "a person": "Invent a person who works in a library.",
    "a shape": "Draw something round, or a box.",
    "a tree": "Describe an apple tree and two of its leaves.",
}


def tool(name: str, description: str, schema: dict[str, Any]) -> Tool:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [tool(f"save_{name.split()[1]}", f"Saves {name}.", schema) for name, schema in SCHEMAS.items()]
TOOLS.append({"type": "function", "function": {"name": "save_nothing"}})
PARAMETERS = {each["function"]["name"]: each["function"].get("parameters", {"type": "object"}) for each in TOOLS}


@dataclass
class Answer:
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    reason: str = ""


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Exl3Engine]:
    model = ModelOptions(model_dir="demo", max_seq_len=4096, cache_size=8 * 4096, max_batch_size=8)
    loaded = await find_engine("cpu").load(EngineSettings(model_key="demo", model=model), lambda progress: None)
    assert isinstance(loaded, Exl3Engine)
    yield loaded
    await loaded.close()


async def ask(engine: Exl3Engine, question: str, params: GenerationParams) -> Answer:
    assert params.chat is not None
    use = params.chat.tool_use
    messages = [{"role": "user", "content": question}]
    prompt = await engine.render(Chat(messages=messages, tools=use.tools if use is not None else ()))
    answer = Answer()
    async for event in engine.generate(prompt, params):
        match event:
            case Text(text=text):
                answer.text += text
            case ToolCallStart(name=name):
                answer.calls.append((name, ""))
            case ToolCallArguments(text=text):
                name, arguments = answer.calls[-1]
                answer.calls[-1] = (name, arguments + text)
            case Finished(reason=reason):
                answer.reason = reason
    return answer


def sampled(seed: int | None, **params: Any) -> GenerationParams:
    """Greedy without a seed."""
    return GenerationParams(max_tokens=MAX_TOKENS, temperature=0.0 if seed is None else 1.0, seed=seed, **params)


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    kind = jsonschema.Draft202012Validator
    return kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(json.loads(text))


def as_schema(name: str, seed: int | None) -> GenerationParams:
    return sampled(seed, grammar=Grammar(kind="json_schema", source=json.dumps(SCHEMAS[name])), chat=ChatAnswer())


def as_call(seed: int | None, **use: Any) -> GenerationParams:
    return sampled(seed, chat=ChatAnswer(tool_use=ToolUse(tools=TOOLS, choice="required", **use)))


@pytest.mark.model
async def test_a_bounded_schema_holds_whatever_is_sampled(engine: Exl3Engine) -> None:
    answers = await asyncio.gather(*(ask(engine, QUESTIONS["a city"], as_schema("a city", seed)) for seed in (None, 1)))
    for answer in answers:
        assert answer.reason == "stop"
        assert is_valid(answer.text, SCHEMAS["a city"])


@pytest.mark.model
async def test_a_required_call_is_made_and_valid(engine: Exl3Engine) -> None:
    params = as_call(None, function="save_person", parallel=False)
    answer = await ask(engine, QUESTIONS["a person"], params)
    assert (answer.text, answer.reason) == ("", "tool_calls")
    [(name, arguments)] = answer.calls
    assert name == "save_person"
    assert is_valid(arguments, PARAMETERS[name])


@pytest.mark.model
@pytest.mark.full
@pytest.mark.timeout(1800)
async def test_fifty_of_fifty_answers_keep_to_their_schema(engine: Exl3Engine) -> None:
    names = [name for _ in range(NUM_ANSWERS // len(SCHEMAS)) for name in SCHEMAS]
    seeds = [None if number < len(SCHEMAS) else number for number in range(NUM_ANSWERS)]
    asked = [ask(engine, QUESTIONS[name], as_schema(name, seed)) for name, seed in zip(names, seeds, strict=True)]
    answers = await asyncio.gather(*asked)
    ended = [(name, answer) for name, answer in zip(names, answers, strict=True) if answer.reason == "stop"]
    assert len(ended) >= NUM_ENDED
    assert [answer.text for name, answer in ended if not is_valid(answer.text, SCHEMAS[name])] == []


@pytest.mark.model
@pytest.mark.full
@pytest.mark.timeout(1800)
async def test_fifty_of_fifty_required_calls_keep_to_their_schema(engine: Exl3Engine) -> None:
    questions = [*QUESTIONS.values()]
    seeds = [None if number < len(questions) else number for number in range(NUM_ANSWERS)]
    asked = [
        ask(engine, questions[number % len(questions)], as_call(seed, parallel=False))
        for number, seed in enumerate(seeds)
    ]
    answers = await asyncio.gather(*asked)
    assert [(answer.text, answer.reason, len(answer.calls)) for answer in answers] == [("", "tool_calls", 1)] * 50
    calls = [call for answer in answers for call in answer.calls]
    assert [call for call in calls if not is_valid(call[1], PARAMETERS[call[0]])] == []
