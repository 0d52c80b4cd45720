"""Answers of the common shape: reasoning between tags, then text and sections of calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_answer import CLOCK_CALL, TOOLS, ReadAnswer, cuts, pieces_of, read_answer, read_events

from exllamav3_adapters.answer_format.answer_parser import TaggedAnswer
from exllamav3_adapters.answer_format.json_in_tags import COMMAND, HERMES
from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.answer_format.tool_format import ToolFormat
from exllamav3_adapters.contract import Reasoning, Text, TokenLogprob, ToolCallStart, ToolUse

THINK = ReasoningTags("<think>", "</think>")
CALL = '<tool_call>\n{"name": "read_clock", "arguments": {}}\n</tool_call>'
AUTO = ToolUse(tools=TOOLS)


def parser(
    tools: ToolFormat | None = HERMES,
    reasoning: ReasoningTags | None = THINK,
    tool_use: ToolUse | None = AUTO,
    *,
    opened: bool = False,
    frame: tuple[str, ...] = (),
) -> TaggedAnswer:
    return TaggedAnswer(tools, reasoning, tool_use, opens_reasoning=opened, frame=frame)


def read(text: str, *, cut: bool = False, **given: Any) -> ReadAnswer:
    """In one piece and character by character, which must give the same."""
    whole = read_answer(parser(**given), [text], cut=cut)
    assert read_answer(parser(**given), list(text), cut=cut) == whole
    return whole


def test_reasoning_text_and_calls_are_told_apart() -> None:
    answer = read(f"<think>\nWhat time is it?\n</think>\n\nLet me see.\n\n{CALL}\n{CALL}\n\nThere.")
    assert answer.reasoning == "What time is it?"
    assert answer.text == "Let me see.There."
    assert answer.arguments == [CLOCK_CALL, CLOCK_CALL]


def test_a_call_may_follow_reasoning_at_once() -> None:
    answer = read(f"<think>Hm.</think>{CALL}")
    assert (answer.reasoning, answer.text, answer.arguments) == ("Hm.", "", [CLOCK_CALL])


def test_an_answer_without_reasoning_is_text_from_the_first_character() -> None:
    events = parser().feed("He")
    assert events == [Text(text="He")]


def test_reasoning_is_passed_on_while_it_is_written() -> None:
    reader = parser()
    assert reader.feed("<think>\nI won") == [Reasoning(text="I won")]
    assert reader.feed("der") == [Reasoning(text="der")]


def test_a_call_inside_reasoning_is_reasoning() -> None:
    answer = read(f"<think>I could write {CALL}</think>Done.")
    assert answer.reasoning == f"I could write {CALL}"
    assert (answer.text, answer.calls) == ("Done.", [])


def test_reasoning_that_the_prompt_has_opened_has_no_start_tag() -> None:
    answer = read("So be it.\n</think>\n\nYes.", opened=True)
    assert (answer.reasoning, answer.text) == ("So be it.", "Yes.")


def test_a_start_tag_that_is_also_in_the_prompt_is_not_told() -> None:
    answer = read("\n<think>\nSo be it.\n</think>\n\nYes.", opened=True)
    assert (answer.reasoning, answer.text) == ("So be it.", "Yes.")


def test_an_empty_block_is_no_reasoning() -> None:
    answer = read("<think>\n\n</think>\n\nYes.")
    assert (answer.reasoning, answer.text) == ("", "Yes.")


def test_tags_of_reasoning_inside_the_text_are_text() -> None:
    answer = read("The tags are <think> and </think>.")
    assert (answer.reasoning, answer.text) == ("", "The tags are <think> and </think>.")


def test_reasoning_that_never_ends_is_all_there_is() -> None:
    assert read("<think>On and on", cut=True) == ReadAnswer(reasoning="On and on")
    assert read("<think>On and on") == ReadAnswer(reasoning="On and on")


@pytest.mark.parametrize("cut_tag", ["<t", "<thin"])
def test_a_start_tag_that_was_cut_is_nothing(cut_tag: str) -> None:
    assert read(cut_tag, cut=True) == ReadAnswer()


def test_an_opening_that_was_cut_is_nothing() -> None:
    assert read("Hello <tool_ca", cut=True).text.rstrip() == "Hello"


def test_what_only_looks_like_a_cut_tag_is_text_where_the_model_has_ended() -> None:
    assert read("1 <tool_ca").text == "1 <tool_ca"
    assert read("<thin").text == "<thin"


def test_a_sign_that_may_begin_a_tag_is_text() -> None:
    assert read("1 <", cut=True).text == "1 <"


def test_white_space_belongs_to_the_text_only_inside_it() -> None:
    assert read("  a\n\n b  ", reasoning=None).text == "  a\n\n b  "
    assert read("<think>x</think>\n\n  a \n b ").text == "a \n b "


def test_without_tools_what_looks_like_a_call_is_text() -> None:
    assert read(CALL, tool_use=None).text == CALL


def test_where_no_call_is_allowed_what_looks_like_one_is_text() -> None:
    answer = read(CALL, tool_use=ToolUse(tools=TOOLS, choice="none"))
    assert (answer.text, answer.calls) == (CALL, [])


def test_a_model_without_a_form_of_calls_has_none() -> None:
    assert read(CALL, tools=None).text == CALL


def test_calls_past_the_one_that_is_allowed_are_dropped() -> None:
    answer = read(f"{CALL}\n{CALL}\nDone.", tool_use=ToolUse(tools=TOOLS, parallel=False))
    assert (answer.arguments, answer.text) == ([CLOCK_CALL], "Done.")


def test_every_call_has_an_id_of_its_own_and_counts_up() -> None:
    reader = parser()
    starts = [event for event in read_events(reader, [CALL * 3]) if isinstance(event, ToolCallStart)]
    assert [start.index for start in starts] == [0, 1, 2]
    assert len({start.id for start in starts}) == 3
    assert reader.num_calls == 3


def test_a_call_that_the_model_ended_without_arguments_has_an_empty_object() -> None:
    text = '<tool_call>\n{"name": "read_clock"'
    assert read(text).calls == [("read_clock", "{}")]
    assert read(text, cut=True).calls == [("read_clock", "")]


def test_a_frame_around_the_text_is_no_part_of_it() -> None:
    frame = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    think = ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>")
    text = "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hello <b>.<|END_RESPONSE|>"
    for use in (AUTO, None):
        answer = read(text, tools=COMMAND, reasoning=think, tool_use=use, frame=frame)
        assert (answer.reasoning, answer.text) == ("Hm.", "Hello <b>.")


def test_a_tag_outside_of_a_section_is_dropped() -> None:
    assert read(f"{CALL}</tool_call>\nDone.").text == "Done."


def test_probabilities_go_with_the_text_they_belong_to() -> None:
    tokens = [TokenLogprob(token=token, logprob=-0.5) for token in ("a", "b", "c", "d")]
    reader = parser()
    assert reader.feed("<think>x", tokens[:1]) == [Reasoning(text="x")]
    assert reader.feed("</think>Hi", tokens[1:2]) == [Text(text="Hi", logprobs=(tokens[1],))]
    assert reader.feed(" <tool", tokens[2:3]) == []
    assert reader.feed("s", tokens[3:]) == [Text(text=" <tools", logprobs=tuple(tokens[2:]))]


def test_probabilities_of_calls_are_dropped() -> None:
    of_call, of_text = (TokenLogprob(token=token, logprob=-0.5) for token in ("call", "text"))
    reader = parser()
    reader.feed(CALL, [of_call])
    assert reader.feed("Hi", [of_text]) == [Text(text="Hi", logprobs=(of_text,))]


words = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "\n", " ", "a", "<", "{", '"'])


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(words, max_size=12), cuts=cuts, opened=st.booleans())
def test_where_any_text_is_cut_into_pieces_makes_no_difference(parts: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(parts)
    assert read_answer(parser(opened=opened), pieces_of(text, cuts)) == read_answer(parser(opened=opened), [text])
