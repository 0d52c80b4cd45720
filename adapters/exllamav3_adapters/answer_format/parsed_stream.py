"""An engine's stream of text, read as a chat's answer."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from exllamav3_adapters.answer_format.answer_parser import AnswerEvent, AnswerParser
from exllamav3_adapters.contract import EventStream, Finished, Text, ToolCallArguments, ToolCallStart
from exllamav3_adapters.event_stream import Event


class ParsedStream:
    """A `contract.EventStream` over another one. Belongs to the loop of its reader."""

    def __init__(self, stream: EventStream, parser: AnswerParser) -> None:
        self._stream = stream
        self._parser = parser
        self._ready: deque[Event] = deque()
        self._arguments: list[str] = []
        """Of the last call."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            event = await self._stream.__anext__()
            if isinstance(event, Text):
                self._take(self._parser.feed(event.text, event.logprobs))
            elif isinstance(event, Finished):
                self._take(self._parser.finish(cut=event.reason == "length"))
                self._ready.append(self._finished(event))
            else:
                self._ready.append(event)
        return self._ready.popleft()

    async def aclose(self) -> None:
        self._ready.clear()
        await self._stream.aclose()

    def _take(self, events: Sequence[AnswerEvent]) -> None:
        for event in events:
            if isinstance(event, ToolCallStart):
                self._arguments.clear()
            elif isinstance(event, ToolCallArguments):
                self._arguments.append(event.text)
        self._ready += events

    def _finished(self, event: Finished) -> Finished:
        """A call that a stop string cuts is as little to be carried out as one that the length cuts."""
        if event.reason != "stop" or self._parser.num_calls == 0:
            return event
        return replace(event, reason="length" if _are_cut("".join(self._arguments)) else "tool_calls")


def _are_cut(arguments: str) -> bool:
    """Whether they are the beginning of JSON. What is wrong in its middle is the model's own fault."""
    try:
        json.loads(arguments)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or error.pos >= len(arguments.rstrip())
    except (ValueError, RecursionError):  # numbers and depths past Python's own bounds
        pass
    return False
