"""Which form a model's answers are read in, by its template and its settings."""

from __future__ import annotations

import logging

import pytest
from read_answer import read_answer

from exllamav3_adapters.answer_format.find_format import FormatOptions, find_format, tool_format_names
from exllamav3_adapters.contract import ChatAnswer, ToolUse
from exllamav3_adapters.errors import LoadFailed

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CHAT = ChatAnswer(tool_use=ToolUse(tools=TOOLS))
DEEPSEEK = "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.name + '<｜tool▁sep｜>' }}"


def test_a_template_that_knows_no_tools_has_our_form_and_its_own_read() -> None:
    form = find_format([DEEPSEEK], FormatOptions(), knows_tools=False)
    assert form.tool_format == "hermes"
    for written in (
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ):
        answer = read_answer(form.parser(CHAT, opens_reasoning=False), f"Well. {written}")
        assert (answer.text, answer.arguments) == ("Well.", [("f", {"x": 1})])


def test_a_template_of_an_unknown_form_leaves_calls_as_text_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        form = find_format(["{{ tools }}"], FormatOptions(), knows_tools=True)
    assert form.tool_format is None
    assert "set model.tool_format to one of" in caplog.text


@pytest.mark.parametrize("name", [name for name in tool_format_names() if name != "harmony"])
def test_a_form_may_be_named(name: str) -> None:
    assert find_format([], FormatOptions(tool_format=name), knows_tools=True).tool_format == name


def test_none_leaves_calls_as_text() -> None:
    assert find_format([DEEPSEEK], FormatOptions(tool_format="none"), knows_tools=True).tool_format is None


def test_a_form_that_is_not_there_fails_the_load() -> None:
    with pytest.raises(LoadFailed, match=r"there is no 'morse'; use auto, none, command"):
        find_format([], FormatOptions(tool_format="morse"), knows_tools=True)


def test_reasoning_is_told_where_the_template_or_the_settings_say_so() -> None:
    thinks = ["{{ '</think>' }}"]
    assert find_format([], FormatOptions(), knows_tools=False).reasoning is None
    assert find_format(thinks, FormatOptions(reasoning="off"), knows_tools=False).reasoning is None
    for sources, options in ((thinks, FormatOptions()), ([], FormatOptions(reasoning="on"))):
        found = find_format(sources, options, knows_tools=False).reasoning
        assert found is not None
        assert (found.start, found.end) == ("<think>", "</think>")
    own = find_format(thinks, FormatOptions(reasoning_end_token="<answer>"), knows_tools=False).reasoning
    assert own is not None
    assert (own.start, own.end) == ("<think>", "<answer>")
