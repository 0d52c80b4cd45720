"""Forms that write each parameter between tags of its own, values without quotes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_answer import WEATHER_CALL, ToolFormatCases, cuts, every_cut, pieces_of, read_answer, tagged

from exllamav3_adapters.answer_format.glm import GLM
from exllamav3_adapters.answer_format.parameter_tags import ParameterTags
from exllamav3_adapters.answer_format.xml_parameters import DEEPSEEK_V4, DEEPSEEK_V32, MINIMAX, QWEN_CODER, SEED


class ParameterTagsCases(ToolFormatCases):
    form: ParameterTags

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        return "\n".join(self.one(*call) for call in calls)

    def one(self, name: str, arguments: dict[str, Any]) -> str:
        raise NotImplementedError

    @every_cut
    @given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=40), cuts=cuts)
    def test_any_text_survives_as_a_string(self, text: str, cuts: list[int]) -> None:
        call = ("write_note", {"text": text, "tags": [text]})
        if self.form.words.value_end not in text:
            answer = read_answer(tagged(self.form), pieces_of(self.write(call), cuts))
            assert answer.arguments == [call]

    def test_what_looks_like_the_beginning_of_a_tag_survives(self) -> None:
        words = self.form.words
        for tag in words.all:
            text = f"a {tag[:-1]}{tag} {words.value_end[:-1]} b"
            if words.value_end not in text:
                call = ("write_note", {"text": text, "tags": []})
                assert read_answer(tagged(self.form), list(self.write(call))).arguments == [call]

    def test_a_closing_tag_survives_in_the_strings_of_a_list(self) -> None:
        end = self.form.words.value_end
        call = ("write_note", {"text": "x", "tags": [f'a "quoted" {end}', end, "\\"]})
        assert read_answer(tagged(self.form), list(self.write(call, WEATHER_CALL))).arguments == [call, WEATHER_CALL]

    def test_a_list_with_a_fault_ends_with_its_tag(self) -> None:
        words = self.form.words
        text = self.write(("write_note", {"text": "x", "tags": ["a"]}), WEATHER_CALL).replace('["a"]', '["a]')
        answer = read_answer(tagged(self.form), list(text))
        assert answer.arguments == [("write_note", {"text": "x", "tags": '["a]'}), WEATHER_CALL]
        assert words.value_end not in answer.text

    def test_a_call_that_is_not_closed_ends_with_its_section(self) -> None:
        text = self.write(WEATHER_CALL).replace(self.form.words.call_end, "", 1)
        if self.form.words.call_end == self.form.words.section_end:
            text += self.form.words.section_end
        assert read_answer(tagged(self.form), [text + " Done"]).arguments == [WEATHER_CALL]

    def test_a_section_without_a_call_is_the_text_that_it_holds(self) -> None:
        opening = self.form.openings[0]
        answer = read_answer(tagged(self.form), list(f"{opening}\nnot a call{self.form.words.section_end}\nDone"))
        assert answer.text == "not a call\nDone"
        assert not answer.calls


class SectionCases(ParameterTagsCases):
    """Of forms that have a tag around the call, which models forget."""

    @pytest.mark.parametrize("between", ["", " ", "\n", "\nAnd\n"])
    @pytest.mark.parametrize("closed", [True, False])
    def test_a_call_without_its_section_is_read(self, between: str, closed: bool) -> None:
        words = self.form.words
        assert words.section is not None
        end = words.section_end if closed else ""
        bare = self.write(WEATHER_CALL).removeprefix(words.section).removesuffix(words.section_end).strip()
        answer = read_answer(tagged(self.form), list(f"Well. {bare}{between}{bare}\n{end}\nDone."))
        assert answer.arguments == [WEATHER_CALL] * 2
        assert answer.text == f"Well.{between.strip()}Done."


class TestQwenCoder(SectionCases):
    form = QWEN_CODER

    def one(self, name: str, arguments: dict[str, Any]) -> str:
        written = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


class TestSeed(SectionCases):
    form = SEED

    def one(self, name: str, arguments: dict[str, Any]) -> str:
        written = "".join(f"<parameter={key}>{bare(value)}</parameter>\n" for key, value in arguments.items())
        return f"<seed:tool_call>\n<function={name}>\n{written}</function>\n</seed:tool_call>"


class TestMiniMax(SectionCases):
    form = MINIMAX

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        return f"<minimax:tool_call>\n{super().write(*calls)}\n</minimax:tool_call>"

    def one(self, name: str, arguments: dict[str, Any]) -> str:
        written = "".join(f'<parameter name="{key}">{bare(value)}</parameter>\n' for key, value in arguments.items())
        return f'<invoke name="{name}">\n{written}</invoke>'


class TestDeepSeekV4(SectionCases):
    form = DEEPSEEK_V4
    section = "tool_calls"

    def write(self, *calls: tuple[str, dict[str, Any]]) -> str:
        return f"<｜DSML｜{self.section}>\n{super().write(*calls)}\n</｜DSML｜{self.section}>"

    def one(self, name: str, arguments: dict[str, Any]) -> str:
        written = "".join(
            f'<｜DSML｜parameter name="{key}" string="{json.dumps(isinstance(value, str))}">{bare(value)}'
            "</｜DSML｜parameter>\n"
            for key, value in arguments.items()
        )
        return f'<｜DSML｜invoke name="{name}">\n{written or chr(10)}</｜DSML｜invoke>'


class TestDeepSeekV32(TestDeepSeekV4):
    form = DEEPSEEK_V32
    section = "function_calls"


class TestGlm(ParameterTagsCases):
    form = GLM

    def one(self, name: str, arguments: dict[str, Any]) -> str:
        written = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n" for key, value in arguments.items()
        )
        return f"<tool_call>{name}\n{written}</tool_call>"


def bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
