"""Llama 3's calls, which only their names tell from a JSON answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_answer import CLOCK_CALL, HARD_CALL, WEATHER_CALL, ToolFormatCases, read_answer, tagged

from exllamav3_adapters.answer_format.llama3_json import LLAMA3_JSON
from exllamav3_adapters.contract import Text


class TestLlama3Json(ToolFormatCases):
    form = LLAMA3_JSON
    prose_before = False

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        return "; ".join(
            f'{{"name": "{name}", "parameters": {json.dumps(arguments, ensure_ascii=False)}}}'
            for name, arguments in calls
        )

    def test_a_call_to_a_tool_that_does_not_exist_is_passed_on(self) -> None:
        text = self.write(("no_such_tool", {}))
        assert read_answer(tagged(self.form), [f"<|python_tag|>{text}"]).calls == [("no_such_tool", "{}")]

    def test_without_a_tag_an_object_that_names_no_tool_is_text(self) -> None:
        text = self.write(("no_such_tool", {}))
        answer = read_answer(tagged(self.form), [text])
        assert (answer.calls, answer.text) == ([], text)


@pytest.mark.parametrize("separator", ["; ", ";", "\n", "\n\n", ", "])
def test_calls_are_separated_in_several_ways(separator: str) -> None:
    objects = [json.dumps({"name": name, "parameters": arguments}) for name, arguments in (WEATHER_CALL, HARD_CALL)]
    for opening in ("", "<|python_tag|>", "\n\n"):
        answer = read_answer(tagged(LLAMA3_JSON), [opening + separator.join(objects)])
        assert answer.arguments == [WEATHER_CALL, HARD_CALL]
        assert answer.text == ""


def test_the_type_may_come_first() -> None:
    text = '{"type": "function", "name": "read_clock", "parameters": {}}'
    assert read_answer(tagged(LLAMA3_JSON), [text]).arguments == [CLOCK_CALL]


def test_code_behind_the_tag_is_text() -> None:
    answer = read_answer(tagged(LLAMA3_JSON), ['<|python_tag|>print({"a": 1})'])
    assert (answer.calls, answer.text) == ([], 'print({"a": 1})')


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"city": "Bern", "days": [1, 2, {"name": "get_weather"}]}\n\nThat is all.',
        '{"name": "Alice", "parameters": {}}',
        '{"name": "get_weather", "age": 3}',
        '{"type": "person", "name": "get_weather", "born": {"year": 1}}',
        '{"name": {"first": "Al"}}',
        '{"parameters": {"a": 1}, "city": "Bern"}',
        "{ not json }",
        '{"name": 3}',
    ],
)
def test_a_json_answer_that_is_no_call_is_unharmed(text: str) -> None:
    for pieces in ([text], list(text)):
        answer = read_answer(tagged(LLAMA3_JSON), pieces)
        assert (answer.calls, answer.text) == ([], text)


def test_a_json_answer_is_passed_on_while_it_is_written() -> None:
    parser = tagged(LLAMA3_JSON)
    told = [event.text for event in parser.feed('{"ci') if isinstance(event, Text)]
    assert "".join(told) == '{"ci'


def test_an_object_after_text_is_text() -> None:
    text = 'Like this: {"name": "read_clock", "parameters": {}}'
    assert read_answer(tagged(LLAMA3_JSON), list(text)).text == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=8), values, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(value=st.dictionaries(st.sampled_from(["name", "parameters", "type", "id", "city", "x"]), json_values))
def test_no_json_answer_loses_a_character(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    answer = read_answer(tagged(LLAMA3_JSON), list(text))
    assert (answer.calls, answer.text) == ([], text)
