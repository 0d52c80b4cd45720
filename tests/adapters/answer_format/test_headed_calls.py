"""Forms that write a call's name, and then its arguments as a JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from read_answer import CLOCK_CALL, WEATHER_CALL, ToolFormatCases, read_answer, tagged

from exllamav3_adapters.answer_format.deepseek import DEEPSEEK, DEEPSEEK_V31
from exllamav3_adapters.answer_format.kimi_k2 import KIMI_K2
from exllamav3_adapters.answer_format.mistral import MISTRAL, MISTRAL_ID, MISTRAL_NAME
from exllamav3_adapters.answer_format.tool_format import ToolFormat


def as_json(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


class TestDeepSeek(ToolFormatCases):
    form = DEEPSEEK

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        written = [
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{as_json(arguments)}\n```<｜tool▁call▁end｜>"
            for name, arguments in calls
        ]
        return "<｜tool▁calls▁begin｜>" + "\n".join(written) + "<｜tool▁calls▁end｜>"


class TestDeepSeekV31(ToolFormatCases):
    form = DEEPSEEK_V31

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        written = [
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(arguments)}<｜tool▁call▁end｜>"
            for name, arguments in calls
        ]
        return "<｜tool▁calls▁begin｜>" + "".join(written) + "<｜tool▁calls▁end｜>"


class TestKimiK2(ToolFormatCases):
    form = KIMI_K2

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        written = [
            f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{as_json(arguments)}"
            "<|tool_call_end|>"
            for number, (name, arguments) in enumerate(calls)
        ]
        return "<|tool_calls_section_begin|>" + "".join(written) + "<|tool_calls_section_end|>"


class TestMistralId(ToolFormatCases):
    form = MISTRAL_ID

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        return "".join(f"[TOOL_CALLS]{name}[CALL_ID]abcDEF123[ARGS]{as_json(arguments)}" for name, arguments in calls)


class TestMistralName(ToolFormatCases):
    form = MISTRAL_NAME

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{as_json(arguments)}" for name, arguments in calls)


class TestMistralList(ToolFormatCases):
    form = MISTRAL

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        written = [
            f'{{"name": "{name}", "arguments": {as_json(arguments)}, "id": "abcDEF123"}}' for name, arguments in calls
        ]
        return f"[TOOL_CALLS][{', '.join(written)}]"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (DEEPSEEK, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>read_clock\n```json\n{}\n```<｜tool▁call▁end｜>"),
        (DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read_clock<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        (DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_clock<｜tool▁call▁end｜>"),
        (DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_clock\n<｜tool▁call▁end｜>"),
        (DEEPSEEK_V31, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read_clock<｜tool▁sep｜><｜tool▁call▁end｜>"),
        (KIMI_K2, "<|tool_call_begin|>functions.read_clock:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
        (KIMI_K2, "<|tool_calls_section_begin|><|tool_call_begin|>read_clock<|tool_call_end|>"),
        (KIMI_K2, "<|tool_call_begin|>functions.read_clock:7<|tool_call_argument_begin|>"),
        (MISTRAL, '[TOOL_CALLS] [{"name": "read_clock", "arguments": {}}]'),
        (MISTRAL, '[TOOL_CALLS]{"name": "read_clock", "arguments": {}}'),
        (MISTRAL, "[TOOL_CALLS]read_clock{}"),
        (MISTRAL_ID, "[TOOL_CALLS]read_clock[CALL_ID]abcDEF123[ARGS]"),
        (MISTRAL_ID, '[TOOL_CALLS][{"name": "read_clock"}]'),
    ],
)
def test_other_ways_to_write_a_call_are_understood(form: ToolFormat, text: str) -> None:
    answer = read_answer(tagged(form), list(text))
    assert answer.arguments == [CLOCK_CALL]
    assert answer.text == ""


@pytest.mark.parametrize(
    ("form", "text", "prose"),
    [
        (MISTRAL, "[TOOL_CALLS]I have no tool for that {sorry}.", "I have no tool for that {sorry}."),
        (MISTRAL, "[TOOL_CALLS][1, 2]", "1, 2]"),
        (KIMI_K2, "<|tool_calls_section_begin|>Nothing.<|tool_calls_section_end|>", "Nothing."),
        (DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>No, {well}<｜tool▁call▁end｜>", "No, {well}"),
    ],
)
def test_what_is_no_call_is_text_without_its_tags(form: ToolFormat, text: str, prose: str) -> None:
    for pieces in ([text], list(text)):
        answer = read_answer(tagged(form), pieces)
        assert answer.calls == []
        assert answer.text == prose


def test_arguments_that_are_no_json_are_passed_on_as_they_are() -> None:
    text = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>oops<|tool_call_end|>"
    assert read_answer(tagged(KIMI_K2), [text]).calls == [("f", "oops")]


def test_a_call_that_is_not_closed_ends_where_the_next_begins() -> None:
    one = "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" + as_json(WEATHER_CALL[1])
    answer = read_answer(tagged(DEEPSEEK_V31), [f"<｜tool▁calls▁begin｜>{one}\n{one}<｜tool▁calls▁end｜>Done"])
    assert answer.arguments == [WEATHER_CALL, WEATHER_CALL]
    assert answer.text == "Done"
