"""A streamed answer, as clients of OpenAI's chats read it, and in the order that LiteLLM needs."""

from __future__ import annotations

from typing import Any

from exllamav3_adapters.contract import (
    Finished,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from litellm_exllamav3.answer_chunks import AnswerChunks
from litellm_exllamav3.answer_message import AnswerEvent, WholeAnswer

USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def finished(reason: Any = "stop") -> Finished:
    return Finished(reason=reason, prompt_tokens=10, cached_tokens=4, completion_tokens=3)


def chunks(*events: AnswerEvent) -> list[dict[str, Any]]:
    stream = AnswerChunks()
    found = [chunk for event in events for chunk in stream.take(0, event)]
    assert stream.complete
    return found


def deltas(*events: AnswerEvent) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks(*events) for choice in chunk["choices"]]


def test_the_role_comes_first_and_the_usage_before_the_reason() -> None:
    assert chunks(Text(text="he"), Text(text="llo"), finished()) == [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "he"}, "logprobs": None}]},
        {"choices": [{"index": 0, "delta": {"content": "llo"}, "logprobs": None}]},
        {"choices": [], "usage": USAGE},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]


def test_an_empty_answer_still_has_its_role() -> None:
    assert deltas(finished())[0] == {"role": "assistant", "content": ""}


def test_reasoning_comes_in_its_own_field() -> None:
    assert deltas(Reasoning(text="hm"), Text(text="yes"), finished())[:2] == [
        {"role": "assistant", "reasoning_content": "hm"},
        {"content": "yes"},
    ]


def test_a_call_opens_with_its_id_and_name_and_its_arguments_follow_in_pieces() -> None:
    found = deltas(
        ToolCallStart(index=0, id="call_1", name="add"),
        ToolCallArguments(index=0, text='{"a":'),
        ToolCallArguments(index=0, text="1}"),
        finished("tool_calls"),
    )
    assert found == [
        {
            "role": "assistant",
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}
            ],
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {},
    ]


def test_every_call_that_was_ended_has_arguments() -> None:
    found = deltas(
        ToolCallStart(index=0, id="call_1", name="add"),
        ToolCallStart(index=1, id="call_2", name="look"),
        finished("tool_calls"),
    )
    pieces = [(call["index"], call["function"]["arguments"]) for delta in found for call in delta.get("tool_calls", ())]
    assert pieces == [(0, ""), (0, "{}"), (1, ""), (1, "{}")]


def test_a_call_that_was_cut_gets_none_that_the_model_did_not_write() -> None:
    assert deltas(ToolCallStart(index=0, id="call_1", name="add"), finished("length"))[1:] == [{}]


def test_probabilities_come_with_their_text() -> None:
    text = Text(text="a", logprobs=(TokenLogprob(token="a", logprob=-1.0),))
    logprobs = chunks(text, finished())[0]["choices"][0]["logprobs"]
    assert logprobs == {"content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]}


def test_of_several_choices_the_first_is_finished_last_and_the_others_behind_an_empty_choice() -> None:
    stream = AnswerChunks(2)
    early = [chunk for event in (Text(text="a"), finished("length")) for chunk in stream.take(0, event)]
    assert [choice.get("finish_reason") for chunk in early for choice in chunk["choices"]] == [None]
    assert not stream.complete
    late = [chunk for event in (Text(text="b"), finished()) for chunk in stream.take(1, event)]
    assert late == [
        {"choices": [{"index": 1, "delta": {"role": "assistant", "content": "b"}, "logprobs": None}]},
        {"choices": [{"index": 1, "delta": {}}, {"index": 1, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": USAGE | {"completion_tokens": 6, "total_tokens": 16}},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
    ]


def test_a_stream_says_what_the_whole_answer_says() -> None:
    events: list[AnswerEvent] = [
        Reasoning(text="hm"),
        Text(text="Two calls."),
        ToolCallStart(index=0, id="call_1", name="add"),
        ToolCallArguments(index=0, text='{"a":1}'),
        ToolCallStart(index=1, id="call_2", name="look"),
        finished("tool_calls"),
    ]
    whole = WholeAnswer()
    for event in events:
        whole.add(0, event)
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas(*events):
        for key in ("content", "reasoning_content"):
            message[key] += delta.get(key, "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                message["tool_calls"].append({"id": call["id"], "type": "function", "function": dict(call["function"])})
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert message == whole.choices()[0]["message"]
