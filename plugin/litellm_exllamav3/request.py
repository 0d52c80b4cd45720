"""One request to a served model: its place in the queue and its deadline, from admission to the last event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar

from exllamav3_adapters.contract import (
    Chat,
    Engine,
    EngineInfo,
    EventStream,
    Finished,
    GenerationEvent,
    GenerationParams,
    Head,
    PrefillEvent,
    Prompt,
    Started,
)
from exllamav3_adapters.errors import EngineDied, EngineUnavailable, GenerationTimeout
from litellm_exllamav3.admission import Ticket

T = TypeVar("T")


class EngineSource(Protocol):
    """Where a request gets its engine from (`ServedModel`)."""

    @property
    def key(self) -> str: ...

    async def engine(self, deadline: float) -> Engine:
        """The loaded engine, waiting for it until `deadline` (loop time). Raises `EngineUnavailable`."""

    def engine_died(self, engine: Engine, error: EngineDied) -> None:
        """A call to `engine` ended with `error`."""


class Request:
    """Use as a context manager around all that is done for one request; leaving it frees its place, cancels its jobs.

    Every call here ends by the deadline: with `EngineUnavailable` while the engine has not started the request, and
    with `GenerationTimeout` after that. All of it belongs to the loop.
    """

    def __init__(self, source: EngineSource, ticket: Ticket, timeout_seconds: float) -> None:
        self._source = source
        self._ticket = ticket
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_seconds
        self._streams: list[RequestStream] = []
        self._more_follow = False

    async def info(self) -> EngineInfo:
        """Waits for the engine, then `Engine.info`."""
        return (await self._source.engine(self._deadline)).info

    async def render(self, chat: Chat) -> Prompt:
        """Waits for the engine, then `Engine.render`."""
        return await self._call(lambda engine: engine.render(chat))

    async def render_head(self, head: Head) -> Prompt:
        """Waits for the engine, then `Engine.render_head`."""
        return await self._call(lambda engine: engine.render_head(head))

    async def tokenize(self, text: str) -> Prompt:
        """Waits for the engine, then `Engine.tokenize`."""
        return await self._call(lambda engine: engine.tokenize(text))

    async def open_stream(
        self, prompt: Prompt, params: GenerationParams, *, retain: bool = True, more_follow: bool = False
    ) -> RequestStream:
        """Waits for the engine, then `Engine.generate`, ended at the deadline.

        A request for several answers opens a stream for each. `more_follow`: another will be opened, so the place is
        kept even if all that are open end before.
        """
        engine = await self._source.engine(self._deadline)
        try:
            stream = engine.generate(prompt, params, retain=retain)
        except EngineDied as error:
            self._source.engine_died(engine, error)
            raise
        self._more_follow = more_follow
        self._streams.append(RequestStream(self, engine, stream))
        return self._streams[-1]

    async def aclose(self) -> None:
        """Frees the place and cancels the jobs that still run. May be called more than once."""
        self._ticket.leave(self._loop.time())
        for stream in self._streams:
            await stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _call(self, call: Callable[[Engine], Awaitable[T]]) -> T:
        engine = await self._source.engine(self._deadline)
        return await self.bounded(engine, call(engine))

    async def bounded(self, engine: Engine, call: Awaitable[T]) -> T:
        """What `call` to `engine` returns, if that comes before the deadline."""
        try:
            async with asyncio.timeout_at(self._deadline) as timeout:
                return await call
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.timed_out() from None
        except EngineDied as error:
            self._source.engine_died(engine, error)
            raise

    def timed_out(self) -> EngineUnavailable | GenerationTimeout:
        seconds = f"{self._timeout_seconds:g} s"
        if self._ticket.waiting:
            return EngineUnavailable(
                f"model '{self._source.key}' is busy: the request waited {seconds} for its turn; try again later, "
                "or raise request_timeout_seconds"
            )
        return GenerationTimeout(
            f"the answer of model '{self._source.key}' was not finished within {seconds}; ask for fewer max_tokens, "
            "or raise the request's timeout or request_timeout_seconds"
        )

    def overdue(self) -> bool:
        return self._loop.time() >= self._deadline

    def started(self) -> None:
        self._ticket.start(self._loop.time())

    def stream_ended(self) -> None:
        """Frees the place with the last stream, before its reader has taken the rest."""
        if not self._more_follow and all(stream.ended for stream in self._streams):
            self._ticket.leave(self._loop.time())


class RequestStream:
    """A `contract.EventStream` of one request. At the deadline it raises, and the job is cancelled in the engine."""

    def __init__(self, request: Request, engine: Engine, stream: EventStream) -> None:
        self._request = request
        self._engine = engine
        self._stream = stream
        self._closed = False
        self.ended = False
        """Whether nothing of it runs in the engine any more."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationEvent | PrefillEvent:
        try:
            # An engine that is ahead of its reader never suspends the reader, so no timer would get its turn.
            if self._request.overdue() and not self._closed:
                raise self._request.timed_out()
            event = await self._request.bounded(self._engine, self._stream.__anext__())
        except BaseException:
            await self.aclose()
            raise
        if isinstance(event, Started):
            self._request.started()
        elif isinstance(event, Finished):
            self._end()
        return event

    async def aclose(self) -> None:
        """Cancels the job, and frees the request's place if it was the last. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        self._end()
        await self._stream.aclose()

    def _end(self) -> None:
        self.ended = True
        self._request.stream_ended()
