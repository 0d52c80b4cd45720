"""A whole answer, as clients of OpenAI's chats read it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from litellm.types.utils import Choices, Usage

from exllamav3_adapters.contract import (
    Finished,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from litellm_exllamav3.answer_message import AnswerEvent, WholeAnswer, logprobs_content


def finished(reason: Any = "stop", *, prompt: int = 10, cached: int = 4, completion: int = 3) -> Finished:
    return Finished(reason=reason, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)


def choice(*events: AnswerEvent, with_logprobs: bool = False) -> dict[str, Any]:
    answer = WholeAnswer(with_logprobs=with_logprobs)
    for event in events:
        answer.add(0, event)
    return answer.choices()[0]


ADD = ToolCallStart(index=0, id="call_1", name="add")
LOOK = ToolCallStart(index=1, id="call_2", name="look")


def test_text_is_joined() -> None:
    found = choice(Text(text="he"), Text(text="llo"), finished("length"))
    assert found["message"] == {"role": "assistant", "content": "hello"}
    assert found["finish_reason"] == "length"


def test_reasoning_stands_beside_the_text() -> None:
    found = choice(Reasoning(text="hm"), Reasoning(text="m"), Text(text="yes"), finished())
    assert found["message"] == {"role": "assistant", "content": "yes", "reasoning_content": "hmm"}


def test_an_answer_of_calls_alone_has_no_content() -> None:
    found = choice(
        ADD,
        ToolCallArguments(index=0, text='{"a":'),
        ToolCallArguments(index=0, text="1}"),
        LOOK,
        ToolCallArguments(index=1, text="{}"),
        finished("tool_calls"),
    )
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    assert found["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]


def test_text_before_a_call_is_kept() -> None:
    assert choice(Text(text="Adding."), ADD, finished("tool_calls"))["message"]["content"] == "Adding."


def test_an_empty_answer_is_an_empty_text() -> None:
    assert choice(finished())["message"]["content"] == ""


def test_a_call_without_arguments_has_an_empty_object() -> None:
    found = choice(ADD, finished("tool_calls"))
    assert found["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_call_that_was_cut_is_given_as_far_as_it_came() -> None:
    found = choice(ADD, ToolCallArguments(index=0, text='{"a'), finished("length"))
    assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"a'
    assert choice(ADD, finished("length"))["message"]["tool_calls"][0]["function"]["arguments"] == ""


def test_probabilities_come_with_the_tokens_bytes() -> None:
    token = TokenLogprob(token="ü", logprob=-0.5, top=(("ü", -0.5), ("u", -1.0)))
    found = choice(Text(text="ü", logprobs=(token,)), finished(), with_logprobs=True)
    assert found["logprobs"] == {
        "content": [
            {
                "token": "ü",
                "logprob": -0.5,
                "bytes": [195, 188],
                "top_logprobs": [
                    {"token": "ü", "logprob": -0.5, "bytes": [195, 188]},
                    {"token": "u", "logprob": -1.0, "bytes": [117]},
                ],
            }
        ]
    }


def test_an_impossible_token_and_a_part_of_a_character_are_written_as_json_can() -> None:
    (token,) = logprobs_content([TokenLogprob(token="\ufffd", logprob=-math.inf)])["content"]
    assert (token["logprob"], token["bytes"]) == (-9999.0, None)


def test_an_answer_is_complete_when_every_choice_is() -> None:
    answer = WholeAnswer(num_choices=2)
    answer.add(1, finished())
    assert not answer.complete
    answer.add(0, finished())
    assert answer.complete


def test_the_prompt_of_several_choices_counts_once() -> None:
    answer = WholeAnswer(num_choices=3)
    answer.add(2, finished(completion=5, cached=10))
    answer.add(0, finished(completion=1, cached=4))
    answer.add(1, finished(completion=2, cached=10))
    assert answer.usage() == {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_litellm_takes_it(with_logprobs: bool) -> None:
    answer = WholeAnswer(num_choices=2, with_logprobs=with_logprobs)
    token = TokenLogprob(token="a", logprob=-1.0, top=(("a", -1.0),))
    for index in (0, 1):
        answer.add(index, Reasoning(text="hm"))
        answer.add(index, Text(text="a", logprobs=(token,)))
        answer.add(index, ADD)
        answer.add(index, finished("tool_calls"))
    choices = [Choices(**choice) for choice in answer.choices()]
    assert [choice.index for choice in choices] == [0, 1]
    message = choices[1].message
    assert (message.reasoning_content, message.content) == ("hm", "a")
    assert message.tool_calls[0].function.name == "add"
    assert choices[1].finish_reason == "tool_calls"
    assert (getattr(choices[1], "logprobs", None) is not None) is with_logprobs
    assert Usage(**answer.usage()).prompt_tokens_details.cached_tokens == 4
