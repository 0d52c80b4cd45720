"""Forms whose arguments are named values in a writing of their own: Gemma 4, and Python's calls."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from read_answer import WEATHER_CALL, ToolFormatCases, cuts, every_cut, pieces_of, read_answer, tagged

from exllamav3_adapters.answer_format.gemma import GEMMA
from exllamav3_adapters.answer_format.gemma_grammar import gemma_value
from exllamav3_adapters.answer_format.pythonic import PYTHONIC
from exllamav3_adapters.answer_format.tool_format import ToolFormat

some_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | some_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\A[a-z_]{1,5}\Z"), inner, max_size=3),
    max_leaves=8,
)


class LiteralCases(ToolFormatCases):
    @every_cut
    @given(text=some_text, value=values, cuts=cuts)
    def test_any_value_survives(self, text: str, value: object, cuts: list[int]) -> None:
        call = ("unknown", {"text": text, "value": value, "more": [text]})
        answer = read_answer(tagged(self.form), pieces_of(self.write(call), cuts))
        assert answer.arguments == [call]

    def test_a_section_without_a_call_is_the_text_that_it_holds(self) -> None:
        opening, close = self.form.tags[:2]
        answer = read_answer(tagged(self.form), list(f"{opening}not a call{close}\nDone"))
        assert answer.text == "not a call\nDone"
        assert not answer.calls

    def test_a_section_that_ends_within_a_call_ends_the_call(self) -> None:
        close = self.form.tags[1]
        text = self.write(WEATHER_CALL)
        for end in range(text.index("rich") + 4, len(text) - len(close)):
            answer = read_answer(tagged(self.form), list(f"{text[:end]}{close}\nDone"))
            assert answer.text == "Done"
            assert answer.arguments[0][1]["city"].startswith("Zürich")


class TestGemma(LiteralCases):
    form: ToolFormat = GEMMA

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        # As the template, which sorts; it is the order of the tests' calls, too.
        return "".join(f"<|tool_call>call:{name}{members(arguments)}<tool_call|>" for name, arguments in calls)


class TestPythonic(LiteralCases):
    form: ToolFormat = PYTHONIC

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        written = [
            f"{name}({', '.join(f'{key}={quoted(v)}' for key, v in arguments.items())})" for name, arguments in calls
        ]
        return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


def members(arguments: dict[str, Any]) -> str:
    return "{" + ",".join(f"{key}:{gemma_value(value)}" for key, value in sorted(arguments.items())) + "}"


def quoted(value: object) -> str:
    """As Python, with double quotes."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(quoted, value))}]"
        case dict():
            return "{" + ", ".join(f"{quoted(key)}: {quoted(item)}" for key, item in value.items()) + "}"
        case _:
            return repr(value)
