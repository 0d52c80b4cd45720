"""An engine in a process of its own, seen through the contract."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Self, TypeVar

import msgspec

from exllamav3_adapters import wire
from exllamav3_adapters.child_process import ChildProcess
from exllamav3_adapters.connection import ConnectionBroken
from exllamav3_adapters.contract import (
    Chat,
    EngineInfo,
    EngineStats,
    GenerationParams,
    Head,
    LoadProgress,
    Prompt,
    StoredPrefix,
)
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import EngineDied, EngineError, EngineUnavailable, InvalidRequest, LoadFailed
from exllamav3_adapters.event_stream import QueuedEventStream
from exllamav3_adapters.registry import engine_names

logger = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_SECONDS = 15.0
"""From one answer of a loaded engine to the next question whether it still answers."""
SILENT_SECONDS = 120.0
"""For that answer. An engine answers between two steps, so this must be longer than any step, on any machine."""
_SILENT_PARTS = 8
"""That time is counted in parts: when this process is stopped or held up itself, that is at most one of them."""
_END_SECONDS = 1.0
"""For a process to end by itself once it has closed its connection."""
_CLOSE_SECONDS = 10.0
"""For an engine to close in order before its process is killed."""


class HostedEngine:
    """A `contract.Engine` whose calls are answered by a child process.

    It does not restart: when the process ends unasked, or says that its engine broke and that it will end, all that
    waits raises `EngineDied` with the reason, so does every later call, and `died` returns; whoever supervises it then
    closes it and loads another. A process that lives on but does
    not answer (native code that hangs) is killed, and has died in the same way. Works on asyncio's and uvloop's
    loops. Cancelling the task that awaits a call, or closing a stream, cancels the work in the child.
    """

    def __init__(self, child: ChildProcess, info: EngineInfo, watch_seconds: float, silent_seconds: float) -> None:
        """Use `load`."""
        self._child = child
        self._info = info
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._streams: dict[int, QueuedEventStream] = {}
        self._unavailable: EngineUnavailable | None = None
        self._ended: asyncio.Future[EngineDied | None] = asyncio.get_running_loop().create_future()
        self._closing: asyncio.Task[None] | None = None
        self._watch_seconds = watch_seconds
        self._silent_seconds = silent_seconds
        self._serving = asyncio.create_task(self._serve(), name=f"engine process {child.pid}")

    @classmethod
    async def load(
        cls,
        engine_name: str,
        settings: EngineSettings,
        report: Callable[[LoadProgress], None],
        *,
        watch_seconds: float = WATCH_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> Self:
        """Starts the process and loads the engine in it.

        `report` is called on the loop. Raises `LoadFailed` with the child's reason, or with how the child ended.
        Cancelling it kills the child. A load may take any time; the loaded engine is asked every `watch_seconds`
        whether it still answers, and is killed when it has not for `silent_seconds`.
        """
        if engine_name not in engine_names():
            raise LoadFailed(f"no engine is called {engine_name!r}; choose one of {', '.join(engine_names())}")
        child = await ChildProcess.start(engine_name)
        try:
            return cls(child, await _loaded(child, settings, report), watch_seconds, silent_seconds)
        except BaseException:
            child.kill()
            await child.wait()
            await child.connection.aclose()
            raise

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def pid(self) -> int:
        return self._child.pid

    async def died(self) -> EngineDied | None:
        """As `contract.Mortal`."""
        return await asyncio.shield(self._ended)

    async def render(self, chat: Chat) -> Prompt:
        return await self._call(wire.Render(next(self._ids), chat), Prompt)

    async def render_head(self, head: Head) -> Prompt:
        return await self._call(wire.RenderHead(next(self._ids), head), Prompt)

    async def tokenize(self, text: str) -> Prompt:
        return await self._call(wire.Tokenize(next(self._ids), text), Prompt)

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> QueuedEventStream:
        return self._open_stream(wire.Generate(next(self._ids), prompt, params, retain))

    def prefill(self, prompt: Prompt, *, pin: bool = False) -> QueuedEventStream:
        return self._open_stream(wire.Prefill(next(self._ids), prompt, pin))

    async def unpin(self, prompt: Prompt) -> None:
        await self._call(wire.Unpin(next(self._ids), prompt), type(None))

    async def stored_prefixes(self, written_after: float = 0.0) -> tuple[StoredPrefix, ...]:
        request = wire.ListStoredPrefixes(next(self._ids), written_after)
        return await self._call(request, tuple[StoredPrefix, ...])

    async def forget(self, prompt: Prompt) -> int:
        return await self._call(wire.Forget(next(self._ids), prompt), int)

    async def stats(self) -> EngineStats:
        return await self._call(wire.GetStats(next(self._ids)), EngineStats)

    async def close(self) -> None:
        """Returns when the process has ended: in order, or killed after ten seconds."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._unavailable is None:
            self._unavailable = EngineUnavailable("the engine was closed")
            self._child.connection.send(wire.Close(next(self._ids)))
        await asyncio.wait([self._serving], timeout=_CLOSE_SECONDS)
        if not self._serving.done():
            self._child.kill()
        await self._serving

    async def _call(self, request: wire.Call, result: type[T]) -> T:
        self._check_available()
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._child.connection.send(request)
        self._calls[request.id] = answer
        try:
            return wire.unpack_value(await answer, result)
        except asyncio.CancelledError:
            self._cancel(request.id)
            raise
        finally:
            self._calls.pop(request.id, None)

    def _open_stream(self, request: wire.Generate | wire.Prefill) -> QueuedEventStream:
        stream = QueuedEventStream(on_cancel=lambda: self._cancel(request.id))
        try:
            self._check_available()
            self._child.connection.send(request)
        except EngineError as error:
            stream.fail(error)
        else:
            self._streams[request.id] = stream
        return stream

    def _cancel(self, request_id: int) -> None:
        self._streams.pop(request_id, None)
        if self._unavailable is None:
            self._child.connection.send(wire.Cancel(request_id))

    def _check_available(self) -> None:
        if self._unavailable is not None:
            raise type(self._unavailable)(self._unavailable.message)

    async def _serve(self) -> None:
        """Hands out what the child sends until it ends or falls silent, then fails what still waits."""
        receiving = asyncio.create_task(self._receive())
        ending = asyncio.create_task(self._child.wait())
        silence = asyncio.create_task(self._wait_for_silence())
        await asyncio.wait([receiving, ending, silence], return_when=asyncio.FIRST_COMPLETED)
        silent = not (receiving.done() or ending.done())
        silence.cancel()
        if silent:
            self._child.kill()
        # One follows the other at once, unless the child left a process of its own behind or hangs in its exit.
        await asyncio.wait([receiving, ending], timeout=_END_SECONDS)
        receiving.cancel()
        self._child.kill()
        # A process that hangs inside a driver may outlive even that; nobody waits for it.
        reason = f"had not answered for {self._silent_seconds:g} s and was killed" if silent else await ending
        self._end(EngineDied(f"the engine's process {reason}; try again once it is back"))
        await self._child.connection.aclose()

    def _end(self, died: EngineDied) -> None:
        """All that waits fails, and whoever asks from here on. What the engine said of its end counts before how its
        process ended."""
        if self._ended.done():
            return
        was_closed = self._unavailable is not None
        self._unavailable = self._unavailable or died
        self._fail_all()
        self._ended.set_result(None if was_closed else died)

    async def _receive(self) -> None:
        try:
            while True:
                self._take(await self._child.connection.receive())
        except ConnectionBroken as broken:
            logger.debug("engine process %d: %s", self.pid, broken)
        except Exception:
            logger.exception("engine process %d sent what cannot be handled; it is replaced", self.pid)

    async def _wait_for_silence(self) -> None:
        """Returns when the child has left a question unanswered for too long."""
        answered = True
        while answered:
            await asyncio.sleep(self._watch_seconds)
            answered = await self._answers()

    async def _answers(self) -> bool:
        question = asyncio.create_task(self._ask())
        try:
            for _ in range(_SILENT_PARTS):
                await asyncio.wait([question], timeout=self._silent_seconds / _SILENT_PARTS)
                if question.done():
                    return True
            return False
        finally:
            question.cancel()

    async def _ask(self) -> None:
        with contextlib.suppress(Exception):  # a failure is an answer too
            await self.stats()

    def _take(self, message: wire.ToParent) -> None:
        match message:
            case wire.Events(events=events):
                for request_id, kind, event in events:
                    if (stream := self._streams.get(request_id)) is not None:
                        stream.feed(wire.unpack_event(kind, event))
                        if stream.complete:
                            del self._streams[request_id]
            case wire.Reply(id=request_id, value=value):
                if (answer := self._calls.get(request_id)) is not None and not answer.done():
                    answer.set_result(value)
            case wire.Failure(id=request_id, error=error):
                self._fail(request_id, wire.unpack_error(error))
            case wire.Died(error=error):
                self._end(EngineDied(wire.unpack_error(error).message))

    def _fail(self, request_id: int, error: EngineError) -> None:
        if (stream := self._streams.pop(request_id, None)) is not None:
            stream.fail(error)
        elif (answer := self._calls.get(request_id)) is not None and not answer.done():
            answer.set_exception(error)

    def _fail_all(self) -> None:
        assert self._unavailable is not None
        for request_id in [*self._streams, *self._calls]:
            self._fail(request_id, type(self._unavailable)(self._unavailable.message))


async def _loaded(child: ChildProcess, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> EngineInfo:
    try:
        child.connection.send(wire.Load(settings))
        while True:
            match await child.connection.receive():
                case wire.Loading(progress=progress):
                    report(progress)
                case wire.Loaded(info=info):
                    return info
                case wire.NotLoaded(error=error):
                    raise wire.unpack_error(error)
    except ConnectionBroken as error:
        child.kill()
        reason = await child.wait()
        raise LoadFailed(f"the engine's process {reason} while it loaded; its last words: {child.last_line}") from error
    except InvalidRequest as error:
        raise LoadFailed(f"the engine's settings cannot be sent to it: {error.message}") from error
