"""What the answers of a tiny model are held to, which would write anything. Its tags are special tokens."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from exllamav3_adapters.cpu.install import install

install()

from tiny_model import write_tiny_model, write_tokenizer

from exllamav3_adapters.contract import (
    Chat,
    ChatAnswer,
    Finished,
    GenerationParams,
    Grammar,
    Message,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    ToolUse,
)
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.registry import find_engine

TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|other|>"]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<tool_call></think><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if thinks %}<think>\n{% endif %}"
)
LETTERS = dict.fromkeys(range(3 + 32, 3 + 94), 60.0)
"""Bytes that are characters by themselves, made likely."""
COLORS = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "tags": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["color"],
    "additionalProperties": False,
}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": COLORS}}
STOP = {"type": "function", "function": {"name": "stop"}}
ASK: Message = {"role": "user", "content": "paint"}


@dataclass
class Answer:
    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    end: Finished | None = None

    @property
    def reason(self) -> str:
        assert self.end is not None
        return self.end.reason


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("filters") / "tiny", vocab_size=259 + len(TAGS))
    write_tokenizer(folder, TAGS)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest_asyncio.fixture
async def engine(folder: Path) -> AsyncIterator[Exl3Engine]:
    sizes: dict[str, Any] = {"max_seq_len": 2048, "cache_size": 2048, "chunk_size": 256}
    settings = EngineSettings(model_key="tiny", model=ModelOptions(model_dir=str(folder), **sizes))
    loaded = await find_engine("cpu").load(settings, lambda progress: None)
    assert isinstance(loaded, Exl3Engine)
    yield loaded
    await loaded.close()


async def ask(engine: Exl3Engine, *messages: Message, thinks: bool = False, chat: Any = None, **params: Any) -> Answer:
    tools = [PAINT, STOP] if chat is not None and chat.tool_use is not None else []
    prompt = await engine.render(Chat(messages=messages or [ASK], tools=tools, template_variables={"thinks": thinks}))
    assert prompt.opens_reasoning == thinks
    return await read(engine.generate(prompt, GenerationParams(chat=chat or ChatAnswer(), **params)))


async def read(stream: AsyncIterator[Any]) -> Answer:
    answer = Answer()
    async for event in stream:
        match event:
            case Text(text=text):
                answer.text += text
            case Reasoning(text=text):
                answer.reasoning += text
            case ToolCallStart(name=name):
                answer.calls.append([name, ""])
            case ToolCallArguments(text=text):
                answer.calls[-1][1] += text
            case Finished():
                answer.end = event
    return answer


def required(**use: Any) -> ChatAnswer:
    return ChatAnswer(tool_use=ToolUse(tools=[PAINT, STOP], choice="required", **use), reasoning=False)


def schema(value: Any) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(value))


def check(arguments: str) -> None:
    value = json.loads(arguments)
    assert value["color"] in ("red", "blue")
    assert all(isinstance(tag, bool) for tag in value.get("tags", ()))
    assert value.keys() <= {"color", "tags"}


async def test_a_required_call_is_made_and_valid(engine: Exl3Engine) -> None:
    for seed in range(5):
        answer = await ask(engine, chat=required(function="paint", parallel=False), seed=seed, max_tokens=400)
        assert (answer.text, answer.reason, len(answer.calls)) == ("", "tool_calls", 1)
        check(answer.calls[0][1])


async def test_calls_follow_each_other_where_they_may(engine: Exl3Engine) -> None:
    names: set[str] = set()
    for seed in range(5):
        answer = await ask(engine, chat=required(), seed=seed, max_tokens=400)
        assert answer.text == ""
        names.update(name for name, _ in answer.calls)
        for name, arguments in answer.calls[: None if answer.reason == "tool_calls" else -1]:
            check(arguments) if name == "paint" else json.loads(arguments)
    assert names == {"paint", "stop"}


async def test_reasoning_comes_before_a_required_call_and_ends_with_its_budget(engine: Exl3Engine) -> None:
    chat = ChatAnswer(
        tool_use=ToolUse(tools=[PAINT], choice="required", parallel=False), reasoning=True, reasoning_budget=12
    )
    answer = await ask(engine, thinks=True, chat=chat, seed=3, max_tokens=500, logit_bias=LETTERS)
    assert answer.reason == "tool_calls"
    check(answer.calls[0][1])
    assert len(answer.reasoning) == 12
    assert answer.text == ""


@pytest.mark.parametrize("budget", [0, 1, 7, 300])
async def test_reasoning_ends_with_its_budget_and_the_answer_goes_on(engine: Exl3Engine, budget: int) -> None:
    """300: the answer is requeued meanwhile."""
    chat = ChatAnswer(reasoning_budget=budget)
    answer = await ask(engine, thinks=True, chat=chat, seed=1, max_tokens=budget + 30, logit_bias=LETTERS)
    assert (len(answer.reasoning), answer.reason) == (budget, "length")
    # The end of reasoning: a new line, the tag, two new lines.
    assert len(answer.text) == 30 - 4


async def test_without_a_budget_reasoning_goes_on(engine: Exl3Engine) -> None:
    answer = await ask(engine, thinks=True, seed=1, max_tokens=40, logit_bias=LETTERS)
    assert (len(answer.reasoning), answer.text) == (40, "")


async def test_reasoning_that_the_answer_opens_has_a_budget_too(engine: Exl3Engine) -> None:
    opens = {**LETTERS, 261: 90.0}
    answer = await ask(engine, chat=ChatAnswer(reasoning_budget=5), max_tokens=40, temperature=0.0, logit_bias=opens)
    assert answer.reasoning == "<think>" * 5


async def test_an_answer_that_does_not_reason_has_no_budget(engine: Exl3Engine) -> None:
    chat = ChatAnswer(reasoning_budget=5)
    answer = await ask(engine, chat=chat, seed=1, max_tokens=40, logit_bias=LETTERS)
    assert (answer.reasoning, len(answer.text)) == ("", 40)


async def test_reasoning_does_not_end_within_a_character(engine: Exl3Engine) -> None:
    """Random bytes held to be characters, most of them of several bytes."""
    chat = ChatAnswer(reasoning_budget=10)
    several = dict.fromkeys(range(3 + 94, 259), 30.0)
    for seed in range(6):
        answer = await ask(
            engine,
            thinks=True,
            chat=chat,
            grammar=Grammar(kind="regex", source="ok"),
            seed=seed,
            max_tokens=60,
            logit_bias=several,
        )
        assert "\ufffd" not in answer.reasoning
        assert 10 <= len(answer.reasoning.encode()) <= 13
        assert (answer.text, answer.reason) == ("ok", "stop")


async def test_a_banned_string_takes_reasoning_back_and_the_budget_with_it(engine: Exl3Engine) -> None:
    chat = ChatAnswer(reasoning_budget=20)
    params: dict[str, Any] = {"thinks": True, "chat": chat, "seed": 5, "max_tokens": 60, "logit_bias": LETTERS}
    free = await ask(engine, **params)
    banned = free.reasoning[8:11]
    answer = await ask(engine, **params, banned_strings=(banned,))
    assert banned.lower() not in answer.reasoning.lower()
    assert len(answer.reasoning) == 20
    assert answer.text


async def test_bans_of_the_end_of_reasoning_are_refused(engine: Exl3Engine) -> None:
    for params in ({"banned_strings": ("</THINK>",)}, {"banned_tokens": (262,)}):
        with pytest.raises(InvalidRequest, match="past its budget"):
            await ask(engine, thinks=True, chat=ChatAnswer(reasoning_budget=3), max_tokens=9, **params)


async def test_an_answer_is_valid_against_its_schema(engine: Exl3Engine) -> None:
    for seed in range(5):
        answer = await ask(engine, chat=ChatAnswer(reasoning=False), grammar=schema(COLORS), seed=seed, max_tokens=400)
        assert answer.reason == "stop"
        check(answer.text)


async def test_a_stop_string_that_cuts_a_grammar_is_no_proper_end(engine: Exl3Engine) -> None:
    chat = ChatAnswer(reasoning=False)
    answer = await ask(engine, chat=chat, grammar=schema(COLORS), stop=("color",), seed=1, max_tokens=400)
    assert (answer.text, answer.reason) == ('{"', "length")


async def test_a_turn_goes_on_until_min_tokens_where_the_grammar_does(engine: Exl3Engine) -> None:
    chat = ChatAnswer(reasoning=False)
    likely = {2: 80.0}
    for source, length in (("a*", 25), ("a{3,7}", 7), ("a{30,}", 30)):
        grammar = Grammar(kind="regex", source=source)
        answer = await ask(engine, chat=chat, grammar=grammar, seed=1, max_tokens=60, min_tokens=25, logit_bias=likely)
        assert (answer.text, answer.reason) == ("a" * length, "stop")


async def test_bans_that_leave_a_grammar_nothing_are_refused(engine: Exl3Engine) -> None:
    chat = ChatAnswer(reasoning=False)
    for params in ({"banned_tokens": (3 + ord("c") - 33,)}, {"banned_strings": ("color",)}):
        with pytest.raises(InvalidRequest, match="grammar"):
            await ask(engine, chat=chat, grammar=schema(COLORS), seed=1, max_tokens=60, **params)
    answer = await ask(engine, chat=chat, grammar=schema(COLORS), seed=1, max_tokens=400, banned_strings=("red",))
    assert '"blue"' in answer.text


async def test_no_calls_are_made_where_none_are_wanted(engine: Exl3Engine) -> None:
    chat = ChatAnswer(tool_use=ToolUse(tools=[PAINT], choice="none"), reasoning=False)
    likely = {259: 60.0, 3 + ord("a") - 33: 50.0}
    answer = await ask(engine, chat=chat, temperature=0.0, max_tokens=10, logit_bias=likely)
    assert (answer.text, answer.calls) == ("a" * 10, [])


async def test_other_special_tokens_are_no_text(engine: Exl3Engine) -> None:
    answer = await ask(engine, temperature=0.0, max_tokens=10, logit_bias={263: 90.0})
    assert answer.text == ""
    answer = await ask(engine, temperature=0.0, max_tokens=10, logit_bias={2: 90.0}, ignore_eos=True)
    assert (answer.text, answer.reason) == ("", "length")


async def test_a_follow_up_keeps_the_tokens_of_calls(engine: Exl3Engine) -> None:
    chat = required(function="stop", parallel=False)
    tools = [PAINT, STOP]
    prompt = await engine.render(Chat(messages=[ASK], tools=tools))
    answer = await read(engine.generate(prompt, GenerationParams(chat=chat, seed=2, max_tokens=200)))
    [[name, arguments]] = answer.calls
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    after = await engine.render(Chat(messages=[ASK, assistant, ASK], tools=tools))
    assert after.token_ids[: len(prompt.token_ids)] == prompt.token_ids
    assert 259 in after.token_ids[len(prompt.token_ids) :]
    assert engine._renderer.conversations.num_tokens
    found = await read(engine.generate(after, GenerationParams(max_tokens=1)))
    assert found.end is not None
    assert found.end.cached_tokens >= len(prompt.token_ids) // 256 * 256


@pytest.mark.parametrize(
    ("schema_", "fault"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
            r'properties\.a: .*"uniqueItems"',
        ),
        ({"type": "object", "properties": {"contains": {"not": {}}}}, r'properties\.contains: .*"not"'),
        ({"anyOf": [{"type": "string"}, {"type": "text"}]}, r"anyOf\.1: Invalid type: text"),
        ({"$defs": {"b": {"pattern": "(a"}}, "$ref": "#/$defs/b"}, r"\$defs\.b: .*unclosed group"),
        ({"items": {"$ref": "#/$defs/nowhere"}}, "items: .*nowhere"),
        ({"type": "string", "format": "regex"}, "Unknown format: regex"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ],
)
async def test_a_schema_that_cannot_be_enforced_is_refused_by_its_part(
    engine: Exl3Engine, schema_: Any, fault: str
) -> None:
    with pytest.raises(InvalidRequest, match=fault) as caught:
        await ask(engine, chat=ChatAnswer(reasoning=False), grammar=schema(schema_), max_tokens=5)
    assert caught.value.param == "response_format"
    with pytest.raises(InvalidRequest, match=fault):
        await ask(engine, chat=ChatAnswer(), grammar=schema(schema_), max_tokens=5)
    tool = {"type": "function", "function": {"name": "f", "parameters": schema_}}
    chat = ChatAnswer(tool_use=ToolUse(tools=[PAINT, tool], choice="required"))
    with pytest.raises(InvalidRequest, match=f"'f'.*{fault}") as caught:
        await ask(engine, chat=chat, max_tokens=5)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    ("kind", "source", "fault"),
    [
        ("regex", "(a", "unclosed group"),
        ("lark", "start: nowhere", "unknown name"),
        ("lark", "a: /b/", "no start rule"),
    ],
)
async def test_a_bad_grammar_says_what_is_wrong(engine: Exl3Engine, kind: Any, source: str, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault) as caught:
        await ask(engine, chat=ChatAnswer(reasoning=False), grammar=Grammar(kind=kind, source=source), max_tokens=5)
    assert caught.value.param == "response_format"


async def test_a_grammar_that_is_too_complex_is_the_requests_fault(engine: Exl3Engine) -> None:
    grammar = Grammar(kind="regex", source="(a?){1000}a{1000}")
    with pytest.raises(InvalidRequest, match=r"too many expressions[^<]*simplify it") as caught:
        await ask(engine, chat=ChatAnswer(reasoning=False), grammar=grammar, max_tokens=5)
    assert caught.value.param == "response_format"


async def test_a_grammar_that_takes_long_to_compile_holds_up_no_other_request(engine: Exl3Engine) -> None:
    words = " | ".join(f'"w{number}"' for number in range(30_000))
    grammar = Grammar(kind="lark", source=f"start: {words}")
    long = asyncio.create_task(ask(engine, chat=ChatAnswer(reasoning=False), grammar=grammar, max_tokens=5))
    await asyncio.sleep(0.2)
    assert (await ask(engine, seed=1, max_tokens=2)).reason == "length"
    assert not long.done()
    with pytest.raises(InvalidRequest, match="simplify it"):
        await long
