"""What a Harmony answer is held to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from read_answer import TOOLS, read_answer
from tiny_model import write_tokenizer

from exllamav3_adapters.answer_format.harmony import HarmonyFormat
from exllamav3_adapters.answer_format.harmony_header import TAGS
from exllamav3_adapters.contract import ChatAnswer, GenerationParams, Grammar, ToolUse

ANALYSIS = "<|channel|>analysis<|message|>Hm. {<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Bern","days":3}<|call|>'
REQUIRED = ToolUse(tools=TOOLS, choice="required")
NUMBER = Grammar(kind="regex", source="[0-9]+")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, list(TAGS))
    return LLTokenizer(str(folder / "tokenizer.json"))


def takes(tokenizer: LLTokenizer, text: str, grammar: Grammar | None = None, **chat: Any) -> bool:
    special = {tag: tokenizer.tokenize_str(tag, parse_special=True)[0] for tag in TAGS}
    params = GenerationParams(grammar=grammar, chat=ChatAnswer(**chat))
    form = HarmonyFormat(model_dir=None)
    held = form.prepared(params, opens_reasoning=False, special_tokens=special).grammar
    assert held is not None
    matcher = LLMatcher(tokenizer, grammar_from(held.kind, held.source))
    assert not matcher.get_error()
    token_ids = tokenizer.tokenize_str(text, parse_special=True)
    return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


def test_a_required_call_may_follow_reasoning(tokenizer: LLTokenizer) -> None:
    assert takes(tokenizer, CALL, tool_use=REQUIRED)
    assert takes(tokenizer, ANALYSIS + CALL, tool_use=REQUIRED)


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>final<|message|>No.",
        CALL.replace("3", '"x"'),
        CALL.replace("get_weather", "other"),
        CALL + "<|start|>assistant" + CALL,
        ANALYSIS,
    ],
)
def test_nothing_else_does(tokenizer: LLTokenizer, text: str) -> None:
    assert not takes(tokenizer, text, tool_use=REQUIRED)


def test_reasoning_is_left_out_where_the_request_wants_none(tokenizer: LLTokenizer) -> None:
    assert not takes(tokenizer, ANALYSIS + CALL, tool_use=REQUIRED, reasoning=False)
    assert takes(tokenizer, CALL, tool_use=REQUIRED, reasoning=False)


def test_a_grammar_of_the_text_is_one_of_the_final_channel(tokenizer: LLTokenizer) -> None:
    for grammar in (NUMBER, Grammar(kind="lark", source="start: /[0-9]+/"), Grammar(kind="json_schema", source="{}")):
        assert takes(tokenizer, "<|channel|>final<|message|>42", grammar)
        assert takes(tokenizer, ANALYSIS + "<|channel|>final<|message|>42", grammar)
        assert not takes(tokenizer, "<|channel|>final<|message|>fourty", grammar)
        assert not takes(tokenizer, "42", grammar)


def test_where_calls_are_left_to_the_model_it_may_call_or_answer(tokenizer: LLTokenizer) -> None:
    use = ToolUse(tools=TOOLS)
    assert takes(tokenizer, CALL, NUMBER, tool_use=use)
    assert takes(tokenizer, "<|channel|>final<|message|>42", NUMBER, tool_use=use)


def test_where_no_call_is_allowed_none_can_be_addressed() -> None:
    params = GenerationParams(chat=ChatAnswer(tool_use=ToolUse(tools=TOOLS, choice="none")))
    prepared = HarmonyFormat(model_dir=None).prepared(params, opens_reasoning=False, special_tokens={})
    assert prepared.banned_strings == ("to=functions",)


def test_what_the_grammar_takes_is_read_as_that_call(o200k_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(o200k_folder))
    form = HarmonyFormat(model_dir=None)
    answer = read_answer(form.parser(ChatAnswer(tool_use=REQUIRED), opens_reasoning=False), [ANALYSIS + CALL])
    assert answer.reasoning == "Hm. {"
    assert answer.arguments == [("get_weather", {"city": "Bern", "days": 3})]
