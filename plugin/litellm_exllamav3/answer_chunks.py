"""A streamed answer in OpenAI's form, a chunk for each event. Plain values, as in `answer_message.py`.

LiteLLM (1.108) reads a finish reason from a chunk's first choice alone, takes it for the end of the stream, and drops
usage that comes with it or later. So the usage comes before the finish of choice 0, which comes last of all; the finish
of another choice hides behind an empty choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exllamav3_adapters.contract import Finished, Reasoning, Text, ToolCallArguments, ToolCallStart
from litellm_exllamav3.answer_message import NO_ARGUMENTS, AnswerEvent, logprobs_content, usage


class AnswerChunks:
    """The chunks of one stream: `{"choices": [...]}` or `{"choices": [], "usage": {...}}`."""

    def __init__(self, num_choices: int = 1) -> None:
        self._opened: set[int] = set()
        self._open_calls: dict[int, int] = {}
        """Choice -> its last call, while that has no arguments yet."""
        self._finished: list[Finished | None] = [None] * num_choices

    @property
    def complete(self) -> bool:
        return None not in self._finished

    def take(self, index: int, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        """The chunks that `event` of choice `index` leads to."""
        match event:
            case Text():
                logprobs = logprobs_content(event.logprobs) if event.logprobs else None
                yield self._delta(index, {"content": event.text}, logprobs)
            case Reasoning():
                yield self._delta(index, {"reasoning_content": event.text})
            case ToolCallStart():
                yield from self._empty_arguments(index)
                self._open_calls[index] = event.index
                function = {"name": event.name, "arguments": ""}
                call = {"index": event.index, "id": event.id, "type": "function", "function": function}
                yield self._delta(index, {"tool_calls": [call]})
            case ToolCallArguments():
                self._open_calls.pop(index, None)
                yield self._arguments(index, event.index, event.text)
            case Finished():
                if event.reason == "tool_calls":
                    yield from self._empty_arguments(index)
                yield from self._finish(index, event)

    def _finish(self, index: int, finished: Finished) -> Iterator[dict[str, Any]]:
        self._finished[index] = finished
        if index not in self._opened:
            yield self._delta(index, {"content": ""})
        if index != 0:
            yield {"choices": [{"index": index, "delta": {}}, _finish_choice(index, finished)]}
        done = [choice for choice in self._finished if choice is not None]
        if len(done) == len(self._finished):
            yield {"choices": [], "usage": usage(done)}
            yield {"choices": [_finish_choice(0, done[0])]}

    def _empty_arguments(self, index: int) -> Iterator[dict[str, Any]]:
        """Ends a call that got no arguments, so that clients find JSON in it."""
        call = self._open_calls.pop(index, None)
        if call is not None:
            yield self._arguments(index, call, NO_ARGUMENTS)

    def _arguments(self, index: int, call: int, text: str) -> dict[str, Any]:
        return self._delta(index, {"tool_calls": [{"index": call, "function": {"arguments": text}}]})

    def _delta(self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        if index not in self._opened:
            self._opened.add(index)
            delta = {"role": "assistant", **delta}
        return {"choices": [{"index": index, "delta": delta, "logprobs": logprobs}]}


def _finish_choice(index: int, finished: Finished) -> dict[str, Any]:
    return {"index": index, "delta": {}, "finish_reason": finished.reason}
