"""Forms whose calls are JSON between tags."""

from __future__ import annotations

import json
from typing import Any

import pytest
from read_answer import CLOCK_CALL, WEATHER_CALL, ToolFormatCases, read_answer, tagged

from exllamav3_adapters.answer_format.json_in_tags import COMMAND, GRANITE, HERMES, JAMBA, NEMOTRON, PHI, JsonInTags


class JsonCases(ToolFormatCases):
    form: JsonInTags

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        objects = [self.one(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
        return f"{self.form.before}{self.form.between.join(objects)}{self.form.after}"

    def one(self, name: str, arguments: str) -> str:
        return f'{{"name": "{name}", "arguments": {arguments}}}'


class TestHermes(JsonCases):
    form = HERMES


class TestNemotron(JsonCases):
    form = NEMOTRON


class TestGranite(JsonCases):
    form = GRANITE


class TestPhi(JsonCases):
    form = PHI


class TestJamba(JsonCases):
    form = JAMBA


class TestCommand(JsonCases):
    form = COMMAND

    def one(self, name: str, arguments: str) -> str:
        return f'{{"tool_call_id": "0", "tool_name": "{name}", "parameters": {arguments}}}'


@pytest.mark.parametrize(
    "written",
    [
        '{"arguments": {"city": "Zürich", "days": 3}, "name": "get_weather"}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Zürich\\", \\"days\\": 3}"}',
        '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}}',
        '{"id": 1, "name": "get_weather", "parameters": {"city": "Zürich", "days": 3}, "more": {"name": "x"}}',
        '[{"name":"get_weather","arguments":{"city":"Zürich","days":3}}]',
    ],
    ids=["arguments first", "arguments as text", "nested", "other keys", "a list of one"],
)
def test_other_ways_to_write_the_object_are_understood(written: str) -> None:
    answer = read_answer(tagged(HERMES), [f"<tool_call>\n{written}\n</tool_call>"])
    assert answer.arguments == [WEATHER_CALL]
    assert answer.text == ""


@pytest.mark.parametrize("written", ['{"name": "read_clock"}', '{"name": "read_clock", "arguments": null}'])
def test_a_call_without_arguments_has_an_empty_object(written: str) -> None:
    assert read_answer(tagged(HERMES), [f"<tool_call>{written}</tool_call>"]).calls == [("read_clock", "{}")]


def test_what_is_no_call_is_text_without_its_tags() -> None:
    answer = read_answer(tagged(HERMES), ["So:\n<tool_call>\nnothing to call\n</tool_call>"])
    assert answer.calls == []
    assert answer.text == "So:nothing to call\n"


def test_an_object_without_a_name_is_text() -> None:
    answer = read_answer(tagged(HERMES), ['<tool_call>\n{"city": "Bern"}\n</tool_call>\nIt rains.'])
    assert answer.calls == []
    assert answer.text == '{"city": "Bern"}\n\nIt rains.'


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": {"b": 1}', '{"a": {"b": 1}'),
        ('{"name": "f", "arguments": {"a": 1}} }}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}, oops', '{"a": 1}'),
        ('{"name": "f" "arguments": {"a": 1}}', '{"a": 1}'),
    ],
    ids=["a brace missing", "two missing", "braces too many", "a bad key", "a comma missing"],
)
def test_a_broken_call_keeps_what_could_be_read(written: str, arguments: str) -> None:
    answer = read_answer(tagged(HERMES), [f"Hm. <tool_call>\n{written}\n</tool_call>\nDone."])
    assert [(name, text.strip()) for name, text in answer.calls] == [("f", arguments)]
    assert answer.text == "Hm.Done."


def test_a_call_whose_end_tag_is_missing_is_followed_by_the_next() -> None:
    one = '<tool_call>\n{"name": "read_clock", "arguments": {}}\n'
    answer = read_answer(tagged(HERMES), [one + one])
    assert answer.arguments == [CLOCK_CALL, CLOCK_CALL]
    assert answer.text == ""


def test_an_end_tag_in_a_string_belongs_to_the_string() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
    assert read_answer(tagged(HERMES), [text]).arguments == [("f", {"a": "</tool_call>"})]


def test_a_string_that_never_closes_ends_with_the_tag_on_a_line_of_its_own() -> None:
    broken = '<tool_call>\n{"name": "f", "arguments": {"a": "b}}\n</tool_call>\n'
    whole = '<tool_call>\n{"name": "read_clock", "arguments": {}}\n</tool_call>\nDone.'
    for pieces in ([broken + whole], list(broken + whole)):
        answer = read_answer(tagged(HERMES), pieces)
        assert answer.calls == [("f", '{"a": "b}}'), ("read_clock", "{}")]
        assert answer.text == "Done."


def test_a_tag_inside_what_is_no_call_is_not_told() -> None:
    for text in ('<tool_call>{"na</tool_call>": 1', '<tool_call>{"na<tool_call>": 1}</tool_call>'):
        for pieces in ([text], list(text)):
            answer = read_answer(tagged(HERMES), pieces)
            assert "tool_call" not in answer.text
            assert answer.calls == []
