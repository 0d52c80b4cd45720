"""Answers of gpt-oss: messages on channels."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from read_answer import TOOLS, ReadAnswer, cuts, pieces_of, read_answer

from exllamav3_adapters.answer_format.harmony_answer import HarmonyAnswer
from exllamav3_adapters.answer_format.harmony_header import TAGS, HeaderReader
from exllamav3_adapters.answer_format.harmony_vocabulary import load_encoding
from exllamav3_adapters.contract import Text, TokenLogprob, ToolUse

ANALYSIS = "<|channel|>analysis<|message|>The user wants {weather}.<|end|>"
PREAMBLE = "<|channel|>commentary<|message|>I look it up.<|end|>"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Zürich", "days": 3}'
FINAL = "<|channel|>final<|message|>It rains; 1 < 2."
START = "<|start|>assistant"
WEATHER = ("get_weather", {"city": "Zürich", "days": 3})


@pytest.fixture(scope="module")
def headers(o200k_folder: Path) -> HeaderReader:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(o200k_folder))
        return HeaderReader(load_encoding(None))


AUTO = ToolUse(tools=TOOLS)


def parser(headers: HeaderReader, tool_use: ToolUse | None = AUTO, *, opens_reasoning: bool = False) -> HarmonyAnswer:
    return HarmonyAnswer(headers, tool_use, tells_reasoning=True, opens_reasoning=opens_reasoning)


def read(headers: HeaderReader, text: str, tool_use: ToolUse | None = AUTO, *, cut: bool = False) -> ReadAnswer:
    """In one piece and character by character, which must give the same."""
    whole = read_answer(parser(headers, tool_use), [text], cut=cut)
    assert read_answer(parser(headers, tool_use), list(text), cut=cut) == whole
    return whole


def test_channels_are_told_apart(headers: HeaderReader) -> None:
    answer = read(headers, START.join([ANALYSIS, PREAMBLE, CALL + "<|call|>"]))
    assert answer.reasoning == "The user wants {weather}."
    assert answer.text == "I look it up."
    assert answer.arguments == [WEATHER]


def test_the_final_channel_is_the_text(headers: HeaderReader) -> None:
    answer = read(headers, f"{ANALYSIS}{START}{FINAL}<|return|>")
    assert answer.reasoning == "The user wants {weather}."
    assert answer.text == "It rains; 1 < 2."


def test_several_messages_of_a_kind_are_paragraphs(headers: HeaderReader) -> None:
    answer = read(headers, START.join([ANALYSIS, ANALYSIS, PREAMBLE, FINAL]))
    assert answer.reasoning == "The user wants {weather}.\n\nThe user wants {weather}."
    assert answer.text == "I look it up.\n\nIt rains; 1 < 2."


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary json",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json",
        "<|channel|>analysis to=functions.get_weather code",
        "<|channel|>commentary to=get_weather",
        "<|channel|>commentary to=functions.get_weather<|channel|>analysis",
    ],
)
def test_a_call_is_known_by_its_recipient(headers: HeaderReader, header: str) -> None:
    answer = read(headers, header + '<|message|>{"city": "Zürich", "days": 3}<|call|>')
    assert answer.arguments == [WEATHER]
    assert (answer.text, answer.reasoning) == ("", "")


def test_several_calls_follow_each_other(headers: HeaderReader) -> None:
    answer = read(headers, START.join([CALL + "<|call|>", CALL + "<|end|>", CALL]))
    assert answer.arguments == [WEATHER] * 3


def test_only_the_first_call_counts_where_one_is_allowed(headers: HeaderReader) -> None:
    answer = read(headers, START.join([CALL + "<|call|>", CALL]), ToolUse(tools=TOOLS, parallel=False))
    assert answer.arguments == [WEATHER]
    assert answer.text == ""


def test_a_call_without_arguments_has_an_empty_object(headers: HeaderReader) -> None:
    header = "<|channel|>commentary to=functions.read_clock<|message|>"
    assert read(headers, header).calls == [("read_clock", "{}")]
    assert read(headers, f"{header}<|call|>").calls == [("read_clock", "{}")]


def test_arguments_that_are_no_json_are_passed_on(headers: HeaderReader) -> None:
    answer = read(headers, "<|channel|>commentary to=functions.f code<|message|>print(1)<|call|>")
    assert answer.calls == [("f", "print(1)")]


@pytest.mark.parametrize("recipient", ["python", "browser.search"])
def test_what_is_to_a_tool_of_the_models_own_is_reasoning(headers: HeaderReader, recipient: str) -> None:
    answer = read(headers, f"<|channel|>analysis to={recipient} code<|message|>print(1)<|call|>")
    assert (answer.reasoning, answer.text, answer.calls) == ("print(1)", "", [])


def test_without_tools_a_call_is_text(headers: HeaderReader) -> None:
    for use in (None, ToolUse(tools=TOOLS, choice="none")):
        assert read(headers, CALL, use).text == '{"city": "Zürich", "days": 3}'


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("Hello there.", "Hello there."),
        ("<|message|>Hello", "Hello"),
        (f"{FINAL}<|end|>More.", "It rains; 1 < 2.\n\nMore."),
        (f"{FINAL}<|end|>assistant{FINAL}", "It rains; 1 < 2.\n\nIt rains; 1 < 2."),
        (f"{FINAL}<|end|>{FINAL}", "It rains; 1 < 2.\n\nIt rains; 1 < 2."),
        (f"{FINAL}{FINAL}", "It rains; 1 < 2.\n\nIt rains; 1 < 2."),
        (f"{FINAL}{START}{FINAL}", "It rains; 1 < 2.\n\nIt rains; 1 < 2."),
        (f"{START}{FINAL}", "It rains; 1 < 2."),
        (f"<|start|>{FINAL}", "It rains; 1 < 2."),
        (f"assistant{FINAL}", "It rains; 1 < 2."),
        ("<|channel|><|message|>Hello", "Hello"),
        ("<|channel|>final <|constrain|>JSON to=assistant<|message|>Hello", "Hello"),
        ("<|channel|>unheard of<|message|>Hello", "Hello"),
        (f"<|channel|>final<|end|>{START}{FINAL}", "It rains; 1 < 2."),
        (f"{FINAL}<|end|><|start|>user<|message|>And now?<|end|>", "It rains; 1 < 2."),
        (f"{FINAL}<|end|><|start|>functions.f to=assistant<|channel|>commentary<|message|>7", "It rains; 1 < 2."),
        (f"{FINAL}<|message|>!<|constrain|>?", "It rains; 1 < 2.!?"),
        ("<|channel|>final", ""),
        ("", ""),
    ],
)
def test_what_is_not_as_it_should_be_still_has_a_text(headers: HeaderReader, text: str, prose: str) -> None:
    answer = read(headers, text)
    assert (answer.text, answer.calls) == (prose, [])


def test_an_answer_may_begin_inside_reasoning(headers: HeaderReader) -> None:
    text = f"So.<|end|>{START}{FINAL}"
    answer = read_answer(parser(headers, opens_reasoning=True), [text])
    assert (answer.reasoning, answer.text) == ("So.", "It rains; 1 < 2.")


WHOLE = START.join([ANALYSIS, PREAMBLE, CALL + "<|call|>", FINAL])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=cuts)
def test_where_the_text_is_cut_into_pieces_makes_no_difference(headers: HeaderReader, cuts: list[int]) -> None:
    assert read_answer(parser(headers), pieces_of(WHOLE, cuts)) == read_answer(parser(headers), [WHOLE])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.sampled_from([*TAGS, "assistant", "user", " to=", "functions.f", "python", "analysis", "final", "x", " "])
        | st.text(max_size=5),
        max_size=20,
    ),
    cuts=cuts,
)
def test_no_disorder_leaves_markup_in_the_text(headers: HeaderReader, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    answer = read_answer(parser(headers), pieces_of(text, cuts))
    assert not [tag for tag in TAGS if tag in answer.text + answer.reasoning + str(answer.calls)]
    assert answer == read_answer(parser(headers), [text])


def test_an_answer_cut_off_anywhere_keeps_what_was_read(headers: HeaderReader) -> None:
    whole = read(headers, WHOLE)
    for end in range(len(WHOLE)):
        answer = read_answer(parser(headers), [WHOLE[:end]], cut=True)
        assert whole.text.startswith((answer.text, answer.text[:-1]))
        assert whole.reasoning.startswith((answer.reasoning, answer.reasoning[:-1]))
        assert [name for name, _ in answer.calls] in ([], ["get_weather"])


def test_probabilities_go_with_the_text(headers: HeaderReader) -> None:
    chosen = [TokenLogprob(token=token, logprob=-1.0) for token in "abc"]
    reader = parser(headers)
    assert reader.feed(ANALYSIS, chosen[:1])
    [text] = reader.feed(START + FINAL, chosen[1:])
    assert isinstance(text, Text)
    assert text.logprobs == tuple(chosen[1:])
