"""An engine's stream of text, read as a chat's answer."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Self

from exllamav3_adapters.answer_format.answer_parser import AnswerParser
from exllamav3_adapters.contract import EventStream, Finished, Text
from exllamav3_adapters.event_stream import Event


class ParsedStream:
    """A `contract.EventStream` over another one. Belongs to the loop of its reader."""

    def __init__(self, stream: EventStream, parser: AnswerParser) -> None:
        self._stream = stream
        self._parser = parser
        self._ready: deque[Event] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            event = await self._stream.__anext__()
            if isinstance(event, Text):
                self._ready += self._parser.feed(event.text, event.logprobs)
            elif isinstance(event, Finished):
                self._ready += self._parser.finish(cut=event.reason == "length")
                self._ready.append(self._finished(event))
            else:
                self._ready.append(event)
        return self._ready.popleft()

    async def aclose(self) -> None:
        self._ready.clear()
        await self._stream.aclose()

    def _finished(self, event: Finished) -> Finished:
        calls = event.reason == "stop" and self._parser.num_calls > 0
        return replace(event, reason="tool_calls") if calls else event
