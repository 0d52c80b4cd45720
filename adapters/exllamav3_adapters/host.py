"""The process of one engine: `python -m exllamav3_adapters.host --fd N --parent PID --engine NAME`.

`N` is one end of a connected Unix socket (see `wire.py`). The process ends when the other end closes, whatever it
is doing then. SIGINT and SIGTERM are the parent's to answer: it closes the engine in order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable
from typing import NoReturn

import msgspec

from exllamav3_adapters import wire
from exllamav3_adapters.connection import Connection, ConnectionBroken
from exllamav3_adapters.contract import Engine, EventStream, LoadProgress, Mortal
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import EngineError, InvalidRequest, LoadFailed
from exllamav3_adapters.event_stream import Event
from exllamav3_adapters.priority import lower_priority
from exllamav3_adapters.registry import find_engine

logger = logging.getLogger(__name__)

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
"""Of the lines on stderr, which `hosted.py` reads."""
_CLOSE_SECONDS = 5.0
"""For the engine to close in once the parent has gone, or once it is broken."""
_BROKEN_EXIT_STATUS = 70
_PR_SET_PDEATHSIG = 1


class EngineHost:
    """Loads one engine and answers its parent's requests, all of them at the same time, until that closes or goes."""

    def __init__(self, name: str, connection: Connection[wire.ToChild | wire.Malformed]) -> None:
        self._name = name
        self._connection = connection
        self._loading: asyncio.Task[None] | None = None
        self._loaded: Engine | None = None
        self._watching: asyncio.Task[None] | None = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._unsent: list[tuple[int, int, msgspec.Raw]] = []

    async def serve(self) -> None:
        """Returns once the engine is closed: because the parent asked, or because it has gone."""
        try:
            while not isinstance(request := await self._connection.receive(), wire.Close):
                self._accept(request)
        except ConnectionBroken:
            await self._leave()
        else:
            await self._run(request)
        await self._connection.aclose()

    @property
    def _engine(self) -> Engine:
        assert self._loaded is not None, "the parent asks nothing before it knows that the engine is loaded"
        return self._loaded

    async def _leave(self) -> None:
        """Closes the engine within a time, for a parent that has gone; there is nobody to report a failure to."""
        threading.Timer(_CLOSE_SECONDS, os._exit, args=(1,)).start()
        if self._loaded is None:
            os._exit(1)
        await self._loaded.close()

    async def _load(self, settings: EngineSettings) -> None:
        try:
            self._loaded = await find_engine(self._name).load(settings, self._report)
        except Exception as error:
            self._connection.send(wire.NotLoaded(wire.pack_error(self._as_load_failure(error))))
        else:
            self._connection.send(wire.Loaded(self._loaded.info))
            if isinstance(self._loaded, Mortal):
                self._watching = asyncio.create_task(self._watch(self._loaded))

    async def _watch(self, engine: Mortal) -> None:
        """Ends the process of an engine that broke. What it can still write, the credit of its pages, is written."""
        died = await engine.died()
        if died is None:
            return
        self._flush()
        self._connection.send(wire.Died(wire.pack_error(died)))
        threading.Timer(_CLOSE_SECONDS, os._exit, args=(_BROKEN_EXIT_STATUS,)).start()
        with contextlib.suppress(Exception):  # a broken device may fail its own end too
            await self._engine.close()
        await self._connection.aclose()
        os._exit(_BROKEN_EXIT_STATUS)

    def _report(self, progress: LoadProgress) -> None:
        self._connection.send(wire.Loading(progress))

    def _as_load_failure(self, error: Exception) -> EngineError:
        if isinstance(error, LoadFailed):
            return error
        if isinstance(error, ImportError):
            return LoadFailed(f"engine {self._name} cannot be imported: {error}")
        logger.error("engine %s failed to load", self._name, exc_info=error)  # no prompt has been seen yet
        return LoadFailed(f"engine {self._name} failed to load: {type(error).__name__}: {error}")

    def _accept(self, request: wire.ToChild | wire.Malformed) -> None:
        if isinstance(request, wire.Load):
            self._loading = asyncio.create_task(self._load(request.settings))
            return
        if isinstance(request, wire.Cancel):
            if (task := self._running.get(request.id)) is not None:
                task.cancel()
            return
        assert isinstance(request, wire.Request)
        task = asyncio.create_task(self._run(request))
        self._running[request.id] = task
        task.add_done_callback(lambda _: self._running.pop(request.id))

    async def _run(self, request: wire.Request) -> None:
        """Answers a request, whatever its engine raises and wherever: one without an answer would wait for ever."""
        try:
            match request:
                case wire.Generate(prompt=prompt, params=params, retain=retain):
                    await self._stream(request.id, self._engine.generate(prompt, params, retain=retain))
                case wire.Prefill(prompt=prompt, pin=pin):
                    await self._stream(request.id, self._engine.prefill(prompt, pin=pin))
                case wire.Malformed(reason=reason):
                    raise InvalidRequest(f"the request does not have the shape it must have: {reason}")
                case _:
                    value = await self._call(request)
                    self._connection.send(wire.Reply(request.id, wire.pack_value(value)))
        except Exception as error:
            self._fail(request.id, error)

    def _call(self, request: wire.Request) -> Awaitable[object]:
        match request:
            case wire.Render(chat=chat):
                return self._engine.render(chat)
            case wire.RenderHead(head=head):
                return self._engine.render_head(head)
            case wire.Tokenize(text=text):
                return self._engine.tokenize(text)
            case wire.Unpin(prompt=prompt):
                return self._engine.unpin(prompt)
            case wire.ListStoredPrefixes(written_after=written_after):
                return self._engine.stored_prefixes(written_after)
            case wire.Forget(prompt=prompt):
                return self._engine.forget(prompt)
            case wire.GetStats():
                return self._engine.stats()
            case wire.Close():
                return self._engine.close()
            case _:
                raise AssertionError(f"no such request: {type(request).__name__}")

    async def _stream(self, request_id: int, stream: EventStream) -> None:
        """Passes the events on. When the parent reads slowly they wait, and merge, in the engine's stream."""
        try:
            async for event in stream:
                self._queue(request_id, event)
                await self._connection.drain()
        finally:
            await stream.aclose()

    def _queue(self, request_id: int, event: Event) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(wire.pack_event(request_id, event))

    def _flush(self) -> None:
        if self._unsent:
            self._connection.send(wire.Events(self._unsent))
            self._unsent = []

    def _fail(self, request_id: int, error: Exception) -> None:
        self._flush()
        self._connection.send(wire.Failure(request_id, wire.pack_error(_as_engine_error(error))))


async def host(name: str, end: socket.socket) -> None:
    await EngineHost(name, await Connection.open(end, wire.decode_to_child)).serve()


def main(arguments: list[str]) -> NoReturn:
    options = _parse(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    _die_with(options.parent)
    lower_priority(options.nice)
    asyncio.run(host(options.engine, socket.socket(fileno=options.fd)))
    logging.shutdown()
    # An engine's own threads could hold up an orderly exit; there is nothing left to wait for.
    os._exit(0)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="exllamav3_adapters.host")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--nice", type=int, default=0)
    return parser.parse_args(arguments)


def _die_with(parent: int) -> None:
    """Has the kernel end this process with its parent, for when native code keeps the loop from seeing it go.

    To the kernel the parent is the thread that started this process: the one whose loop holds the other end.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _as_engine_error(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    _log_without_values(error)
    return EngineError(f"the engine failed with {type(error).__name__}; its log says where")


def _log_without_values(error: Exception) -> None:
    """An exception's own text may quote a prompt, so only its type and its place are logged."""
    logger.error("%s at\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


if __name__ == "__main__":
    main(sys.argv[1:])
