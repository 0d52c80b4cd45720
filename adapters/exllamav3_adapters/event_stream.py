"""The queue between an engine and the reader of one request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from exllamav3_adapters.contract import (
    Finished,
    GenerationEvent,
    Prefilled,
    PrefillEvent,
    PrefillProgress,
    Reasoning,
    Text,
    ToolCallArguments,
)
from exllamav3_adapters.errors import EngineError

Event = GenerationEvent | PrefillEvent


class QueuedEventStream:
    """A `contract.EventStream` that an engine feeds.

    Everything here belongs to the loop of the reader: an engine that works on another thread brings its events over
    with `loop.call_soon_threadsafe`, many to a call. Nothing blocks and nothing is dropped; what waits unread is
    merged when it is read, so a slow reader gets fewer and larger pieces. One task reads a stream.

    `on_cancel` is called on the loop, at most once, when the reader leaves before the end: by `aclose`, or by being
    cancelled while it waits for an event (as with an async generator, the stream has ended then).
    """

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self._on_cancel = on_cancel
        self._events: deque[Event] = deque()
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._complete = False
        self._closed = False

    @property
    def complete(self) -> bool:
        """Whether nothing more is expected of the engine: it fed the last event, failed, or the reader left."""
        return self._complete

    def feed(self, event: Event) -> None:
        """Adds an event. Ignored once the stream is complete, since an engine learns of a cancel with a delay."""
        if self._complete:
            return
        self._events.append(event)
        self._complete = isinstance(event, Finished | Prefilled)
        self._wake()

    def fail(self, error: EngineError) -> None:
        """Ends the stream with `error`, raised after the events that came before it. Ignored once complete."""
        if self._complete:
            return
        self._error = error
        self._complete = True
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._complete:
                raise StopAsyncIteration
            await self._wait()
        return self._take()

    async def aclose(self) -> None:
        """Leaves the stream: unread events are dropped, a request that still runs is cancelled."""
        self._leave()

    async def _wait(self) -> None:
        assert self._waiter is None, "two tasks read one stream"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._leave()
            raise
        finally:
            self._waiter = None

    def _leave(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._events.clear()
        self._error = None
        if not self._complete:
            self._complete = True
            if self._on_cancel is not None:
                self._on_cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> Event:
        event = self._events.popleft()
        while self._events and (both := _merged(event, self._events[0])) is not None:
            self._events.popleft()
            event = both
        return event


def failed_stream(error: EngineError) -> QueuedEventStream:
    """A stream that has failed before it began."""
    stream = QueuedEventStream()
    stream.fail(error)
    return stream


def _merged(event: Event, following: Event) -> Event | None:
    """One event that says as much as both. None: they are two."""
    match event, following:
        case PrefillProgress(), PrefillProgress():
            return following
        case Text(), Text():
            return Text(text=event.text + following.text, logprobs=event.logprobs + following.logprobs)
        case Reasoning(), Reasoning():
            return Reasoning(text=event.text + following.text)
        case ToolCallArguments(), ToolCallArguments() if event.index == following.index:
            return ToolCallArguments(index=event.index, text=event.text + following.text)
        case _:
            return None
