"""What an answer's grammar takes: reasoning, calls, and text of the client's own grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from read_answer import CLOCK, NOTE, WEATHER
from tiny_model import write_tokenizer

from exllamav3_adapters.answer_format.answer_format import TaggedFormat
from exllamav3_adapters.answer_format.reasoning_tags import FAMILIES
from exllamav3_adapters.answer_format.tool_formats import TOOL_FORMATS
from exllamav3_adapters.contract import ChatAnswer, GenerationParams, Grammar, ToolUse
from exllamav3_adapters.errors import InvalidRequest

THINK = FAMILIES[-1]
SPECIAL = {"<tool_call>": 259, "</tool_call>": 260, "<think>": 261, "</think>": 262}
END_OF_TURN = 2
COLOR = Grammar(kind="json_schema", source='{"type": "object", "properties": {"a": {"type": "integer"}}}')
CALL = '<tool_call>\n{"name": "read_clock", "arguments": {}}\n</tool_call>'


@dataclass(frozen=True)
class Answers:
    """Of a model with the Hermes form, whose tags are text or special tokens."""

    tokenizer: LLTokenizer
    special: dict[str, int]
    form: TaggedFormat

    def prepared(self, opens_reasoning: bool = False, grammar: Grammar | None = None, **chat: Any) -> GenerationParams:
        params = GenerationParams(grammar=grammar, chat=ChatAnswer(**chat))
        return self.form.prepared(params, opens_reasoning=opens_reasoning, special_tokens=self.special)

    def matcher(self, **request: Any) -> LLMatcher:
        grammar = self.prepared(**request).grammar
        assert grammar is not None
        matcher = LLMatcher(self.tokenizer, grammar_from(grammar.kind, grammar.source))
        assert not matcher.get_error()
        return matcher

    def takes(self, text: str, **request: Any) -> bool:
        """Whether the text is a whole answer to the request."""
        matcher, token_ids = self.matcher(**request), self.encode(text)
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.tokenize_str(text, parse_special=True)


@pytest.fixture(scope="module", params=["text", "special tokens"])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    special = SPECIAL if request.param == "special tokens" else {}
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, list(special))
    tokenizer = LLTokenizer((folder / "tokenizer.json").read_text(), eos_token=END_OF_TURN)
    return Answers(tokenizer, special, TaggedFormat(tools=TOOL_FORMATS["hermes"], reasoning=THINK))


def required(*tools: Any, **use: Any) -> dict[str, Any]:
    return {"tool_use": ToolUse(tools=tools or (CLOCK,), choice="required", **use)}


def test_nothing_is_held_where_nothing_is_asked(answers: Answers) -> None:
    assert answers.prepared().grammar is None
    assert answers.prepared(tool_use=ToolUse(tools=(CLOCK,))).grammar is None


def test_a_required_call_comes_alone_or_after_reasoning(answers: Answers) -> None:
    assert answers.takes(CALL, **required())
    assert answers.takes(f"<think>\nNo clock < 3 </b>.\n</think>\n\n{CALL}", **required())
    assert not answers.takes("It is noon.", **required())
    assert not answers.takes(f"Let me see. {CALL}", **required())
    assert not answers.takes(f"{CALL}\nDone.", **required())
    assert not answers.takes("<think>\nIt is noon.\n</think>\n\nIt is noon.", **required())


def test_reasoning_that_the_prompt_opened_must_end(answers: Answers) -> None:
    assert answers.takes(f"I call it.\n</think>\n\n{CALL}", opens_reasoning=True, **required())
    assert not answers.takes(f"I call it.\n{CALL}", opens_reasoning=True, **required())
    # Nothing but its own end leads out of it, so this is all reasoning.
    assert not answers.takes(CALL, opens_reasoning=True, **required())


def test_reasoning_is_left_out_where_the_request_says_so(answers: Answers) -> None:
    assert answers.takes(CALL, reasoning=False, **required())
    assert not answers.takes(f"<think>\n</think>\n\n{CALL}", reasoning=False, **required())


def test_the_turn_cannot_end_within_reasoning(answers: Answers) -> None:
    for text in ("I think", "I think\n</think>", "I think\n</think>\n\n<tool_call>"):
        matcher = answers.matcher(opens_reasoning=True, **required())
        assert matcher.consume_tokens(answers.encode(text))
        assert not matcher.validate_tokens([END_OF_TURN])
    assert matcher.consume_tokens(answers.encode('\n{"name": "read_clock", "arguments": {}}\n</tool_call>'))
    assert matcher.is_accepting()


def test_the_named_function_is_called(answers: Answers) -> None:
    named = required(WEATHER, CLOCK, function="read_clock")
    assert answers.takes(CALL, **named)
    call = {"name": "get_weather", "arguments": {"city": "Bern", "days": 1}}
    assert not answers.takes(f"<tool_call>\n{json.dumps(call)}\n</tool_call>", **named)


def test_one_call_is_all_where_calls_are_not_parallel(answers: Answers) -> None:
    assert answers.takes(f"{CALL}\n{CALL}", **required())
    assert not answers.takes(f"{CALL}\n{CALL}", **required(parallel=False))


def test_a_required_call_comes_instead_of_text_in_a_grammar(answers: Answers) -> None:
    assert answers.takes(CALL, grammar=COLOR, **required())
    assert not answers.takes('{"a": 1}', grammar=COLOR, **required())


def test_calls_are_left_to_the_model_beside_a_grammar_of_the_text(answers: Answers) -> None:
    auto = ToolUse(tools=(CLOCK,))
    for answer in (CALL, '{"a": 1}', f"<think>x</think>{CALL}", '<think>x</think>{"a": 1}'):
        assert answers.takes(answer, grammar=COLOR, tool_use=auto)
    assert not answers.takes("It is noon.", grammar=COLOR, tool_use=auto)
    assert not answers.takes(CALL, grammar=COLOR)


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("json_schema", COLOR.source, '{"a": 1}'),
        ("regex", r"a/b\n[\"x]+" + "\n", 'a/b\n"x"\n'),
        ("regex", r"a\/b", "a/b"),
        ("lark", 'start: greeting " " NAME\ngreeting: "hi"\nNAME: /[a-z]+/ // }', "hi you"),
        ("lark", 'start: calls text reasoned\ncalls: "a"\ntext: "b"\nreasoned: "c" "<think>"?', "abc"),
        ("lark", '%ignore / /\nstart: "a" "b"', "a b"),
    ],
)
def test_text_of_every_kind_of_grammar_may_follow_reasoning(
    answers: Answers, kind: Any, source: str, text: str
) -> None:
    grammar = Grammar(kind=kind, source=source)
    assert answers.takes(text, grammar=grammar)
    assert answers.takes(f"<think>\nwell\n</think>\n\n{text}", grammar=grammar)
    assert answers.takes(f"well</think>{text}", grammar=grammar, opens_reasoning=True)
    assert not answers.takes(f"<think>{text}", grammar=grammar)
    assert not answers.takes(f"<think>well</think>{text}{text}", grammar=grammar)


@pytest.mark.parametrize(
    "grammar", [COLOR, Grammar(kind="regex", source="a+"), Grammar(kind="lark", source="start: /a/")]
)
def test_a_grammar_stays_as_it_is_where_nothing_comes_before_it(answers: Answers, grammar: Grammar) -> None:
    assert answers.prepared(grammar=grammar, reasoning=False).grammar is grammar


def test_no_calls_leaves_the_openings_out(answers: Answers) -> None:
    prepared = answers.prepared(tool_use=ToolUse(tools=(CLOCK,), choice="none"))
    assert prepared.banned_strings == ("<tool_call>",)
    assert prepared.banned_tokens == ((259,) if answers.special else ())


def test_a_special_token_within_a_schema_stays_text(answers: Answers) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "<think>"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    matcher = answers.matcher(reasoning=False, **required(tool))
    call = json.dumps({"name": "f", "arguments": {"a": "<think>"}})
    before, after = answers.encode("<tool_call>"), answers.encode("</tool_call>")
    letters = [token_id for letter in f"\n{call}\n" for token_id in answers.encode(letter)]
    token_ids = [*before, *letters, *after]
    assert matcher.consume_tokens(token_ids)
    assert matcher.is_accepting()


def test_calls_that_cannot_be_enforced_are_refused_by_name(answers: Answers) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "minProperties": 2}}}
    with pytest.raises(InvalidRequest, match=r"'f'.*minProperties: ") as caught:
        answers.prepared(**required(NOTE, tool))
    assert caught.value.param == "tools"


def test_a_call_cannot_be_required_of_a_model_whose_form_is_not_known() -> None:
    params = GenerationParams(chat=ChatAnswer(**required()))
    with pytest.raises(InvalidRequest, match="tool_format") as caught:
        TaggedFormat().prepared(params, opens_reasoning=False, special_tokens={})
    assert caught.value.param == "tool_choice"
