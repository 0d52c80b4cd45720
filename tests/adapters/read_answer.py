"""Reads whole answers with a parser, and what every form of tool calls promises."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import llguidance
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exllamav3_adapters.answer_format.answer_parser import AnswerEvent, AnswerParser, TaggedAnswer
from exllamav3_adapters.answer_format.tool_format import ToolFormat
from exllamav3_adapters.contract import Reasoning, Text, ToolCallArguments, ToolCallStart, ToolUse


@dataclass
class ReadAnswer:
    """All events of an answer put together."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments, as they are written."""

    @property
    def arguments(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def read_events(parser: AnswerParser, pieces: Iterable[str], *, cut: bool = False) -> list[AnswerEvent]:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.finish(cut=cut)]


def read_answer(parser: AnswerParser, pieces: Iterable[str], *, cut: bool = False) -> ReadAnswer:
    answer = ReadAnswer()
    for event in read_events(parser, pieces, cut=cut):
        match event:
            case Text(text=text):
                answer.text += text
            case Reasoning(text=text):
                answer.reasoning += text
            case ToolCallStart(index=index, name=name):
                assert index == len(answer.calls)
                answer.calls.append((name, ""))
            case ToolCallArguments(index=index, text=text):
                assert index == len(answer.calls) - 1
                name, arguments = answer.calls[-1]
                answer.calls[-1] = (name, arguments + text)
    return answer


def tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer"})
NOTE = tool("write_note", text={"type": "string"}, tags={"type": "array", "items": {"type": "string"}})
CLOCK = {"type": "function", "function": {"name": "read_clock"}}
TOOLS = (WEATHER, NOTE, CLOCK)
WEATHER_CALL = ("get_weather", {"city": "Zürich", "days": 3})
HARD_CALL = ("write_note", {"text": 'a "{quoted}" {"x": [1, {"y": "}"}]}\n\t\\ end</b>', "tags": ["}", "{", "]", "\\"]})
CLOCK_CALL = ("read_clock", {})


def tagged(form: ToolFormat | None, **use: Any) -> TaggedAnswer:
    """A parser of an answer without reasoning, to a chat with `TOOLS`."""
    return TaggedAnswer(form, None, ToolUse(tools=TOOLS, **use), opens_reasoning=False)


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[begin:end] for begin, end in pairwise(places)]


cuts = st.lists(st.integers(0, 10_000), max_size=30)
# The classes that share a test differ in the form alone, which is no part of what is drawn.
every_cut = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


class ToolFormatCases:
    """Every form passes these. A test class names its form, and says how a model writes calls in it."""

    form: ToolFormat
    prose_after = True
    """Text may follow a call."""

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        raise NotImplementedError

    @property
    def prose_before(self) -> bool:
        return bool(self.form.openings)

    def whole(self) -> tuple[str, str]:
        """An answer of text and calls, and its text."""
        before = "I look that up: 1 < 2 [a] {b}." if self.prose_before else ""
        after = "Done; 1 < 2 [x]." if self.prose_after else ""
        return "\n".join(filter(None, [before, self.write(WEATHER_CALL, HARD_CALL), after])), before + after

    @pytest.mark.parametrize("call", [WEATHER_CALL, HARD_CALL, CLOCK_CALL], ids=lambda call: call[0])
    def test_a_call_is_read(self, call: tuple[str, dict[str, Any]]) -> None:
        answer = read_answer(tagged(self.form), [self.write(call)])
        assert answer.arguments == [call]
        assert answer.text == ""

    def test_calls_and_the_text_around_them_are_told_apart(self) -> None:
        text, prose = self.whole()
        answer = read_answer(tagged(self.form), [text])
        assert answer.arguments == [WEATHER_CALL, HARD_CALL]
        assert answer.text == prose

    @every_cut
    @given(cuts=cuts)
    def test_where_the_text_is_cut_into_pieces_makes_no_difference(self, cuts: list[int]) -> None:
        text, _ = self.whole()
        assert read_answer(tagged(self.form), pieces_of(text, cuts)) == read_answer(tagged(self.form), [text])

    @every_cut
    @given(begin=st.integers(0, 10_000), length=st.integers(1, 40), cuts=cuts)
    def test_damaged_calls_leave_no_markup_in_the_text(self, begin: int, length: int, cuts: list[int]) -> None:
        text, _ = self.whole()
        begin %= len(text)
        damaged = text[:begin] + text[begin + length :]
        answer = read_answer(tagged(self.form), pieces_of(damaged, cuts))
        assert not [tag for tag in self.form.tags if tag in answer.text]
        assert answer == read_answer(tagged(self.form), [damaged])

    @every_cut
    @given(data=st.data(), cuts=cuts)
    def test_nor_does_it_in_an_answer_without_any_order(self, data: st.DataObject, cuts: list[int]) -> None:
        signs = ["{", "}", "[", "]", '"', "\\", "<", ":", ", ", "\n", "x", '{"name": "', "read_clock"]
        parts = st.sampled_from([*self.form.tags, self.write(CLOCK_CALL), *signs])
        text = "".join(data.draw(st.lists(parts, max_size=12)))
        assert read_answer(tagged(self.form), pieces_of(text, cuts)) == read_answer(tagged(self.form), [text])

    def test_an_answer_cut_off_anywhere_keeps_what_was_read(self) -> None:
        text, prose = self.whole()
        whole = read_answer(tagged(self.form), [text]).calls
        for end in range(len(text)):
            answer = read_answer(tagged(self.form), list(text[:end]), cut=True)
            # A single sign may be the first of a tag as well as the last of the text.
            assert prose.startswith((answer.text, answer.text[:-1].rstrip())) or not self.form.openings
            for (name, arguments), (whole_name, whole_arguments) in zip(answer.calls, whole, strict=False):
                assert name == whole_name
                assert whole_arguments.startswith(arguments)

    def test_arguments_are_passed_on_while_they_are_written(self) -> None:
        text = self.write(("write_note", {"text": "x" * 200, "tags": []}))
        parser = tagged(self.form)
        middle = text.index("x" * 100) + 100
        told = [event for event in parser.feed(text[:middle]) if isinstance(event, ToolCallArguments)]
        assert "".join(event.text for event in told).count("x") > 90

    def test_a_call_to_a_tool_that_does_not_exist_is_passed_on(self) -> None:
        assert read_answer(tagged(self.form), [self.write(("no_such_tool", {"a": "b"}))]).arguments == [
            ("no_such_tool", {"a": "b"})
        ]

    def test_only_the_first_call_counts_where_one_is_allowed(self) -> None:
        answer = read_answer(tagged(self.form, parallel=False), [self.write(WEATHER_CALL, CLOCK_CALL)])
        assert answer.arguments == [WEATHER_CALL]
        assert answer.text == ""

    def test_the_grammar_takes_what_the_model_writes(self) -> None:
        for calls in ([WEATHER_CALL], [HARD_CALL], [CLOCK_CALL], [WEATHER_CALL, HARD_CALL, CLOCK_CALL]):
            assert accepts(self.form.grammar(TOOLS, parallel=True), self.write(*calls))

    def test_the_grammar_takes_one_call_where_one_is_allowed(self) -> None:
        grammar = self.form.grammar(TOOLS, parallel=False)
        assert accepts(grammar, self.write(WEATHER_CALL))
        assert not accepts(grammar, self.write(WEATHER_CALL, WEATHER_CALL))

    @pytest.mark.parametrize(
        "call", [("get_weather", {"city": "Bern"}), ("get_weather", {"city": "Bern", "days": "x"}), ("other", {})]
    )
    def test_the_grammar_takes_no_call_that_breaks_the_schema(self, call: tuple[str, dict[str, Any]]) -> None:
        assert not accepts(self.form.grammar(TOOLS, parallel=True), self.write(call))

    def test_tags_name_the_openings(self) -> None:
        assert set(self.form.openings) <= set(self.form.tags)


def accepts(rules: str, text: str) -> bool:
    """Whether a form's grammar takes exactly this text."""
    grammar = llguidance.LLMatcher.grammar_from_lark("start: calls\n" + rules)
    assert not llguidance.LLMatcher.validate_grammar(grammar, _BYTES)
    matcher = llguidance.LLMatcher(_BYTES, grammar)
    return bool(matcher.consume_tokens(list(text.encode()))) and bool(matcher.is_accepting())


_BYTES = llguidance.LLTokenizer("byte")
