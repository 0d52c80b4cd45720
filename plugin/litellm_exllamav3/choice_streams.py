"""The streams of several answers to one prompt, read side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self, TypeAlias

from exllamav3_adapters.contract import EventStream, Finished, GenerationEvent, PrefillEvent

Event: TypeAlias = GenerationEvent | PrefillEvent


class ChoiceStreams:
    """An async iterator of (index of the stream, event), until every stream has finished or one raises.

    Each stream has one event read at most before it is asked for, and those that have one take turns: a fast stream
    starves no other, and a slow reader gets fewer and larger events, as from one stream.
    `aclose` leaves no task behind.
    """

    def __init__(self) -> None:
        self._streams: list[EventStream] = []
        self._unread: set[int] = set()
        """Streams that are not finished and that no task reads from."""
        self._reads: dict[asyncio.Task[Event], int] = {}
        self._ready: deque[asyncio.Task[Event]] = deque()

    def add(self, stream: EventStream) -> None:
        self._unread.add(len(self._streams))
        self._streams.append(stream)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        if not self._ready:
            await self._wait()
        read = self._ready.popleft()
        index = self._reads.pop(read)
        event = read.result()
        if not isinstance(event, Finished):
            self._unread.add(index)
        return index, event

    async def aclose(self) -> None:
        """Cancels what still runs. May be called more than once."""
        reads = list(self._reads)
        self._reads.clear()
        self._ready.clear()
        self._unread.clear()
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()

    async def _wait(self) -> None:
        """Until a stream has an event. Raises `StopAsyncIteration` where none will."""
        for index in sorted(self._unread):
            self._reads[asyncio.ensure_future(_next(self._streams[index]))] = index
        self._unread.clear()
        if not self._reads:
            raise StopAsyncIteration
        done, _ = await asyncio.wait(self._reads, return_when=asyncio.FIRST_COMPLETED)
        self._ready.extend(sorted(done, key=self._reads.__getitem__))


async def _next(stream: EventStream) -> Event:
    return await stream.__anext__()
