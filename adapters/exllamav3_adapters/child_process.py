"""The operating system's side of a hosted engine: start it, hear its log, know how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Self

from exllamav3_adapters import wire
from exllamav3_adapters.connection import Connection
from exllamav3_adapters.process_options import PROCESS_OPTIONS, ProcessOptions

logger = logging.getLogger(__name__)

_LOG_LINE = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")
_MAX_LINE_BYTES = 4096
_READ_BYTES = 65536


class ChildProcess:
    """A spawned `exllamav3_adapters.host` and the connection to it. Everything runs on the loop that started it."""

    def __init__(self, process: asyncio.subprocess.Process, connection: Connection[wire.ToParent], name: str) -> None:
        self.connection = connection
        self.last_line = ""
        """What it wrote to stderr last."""
        self._process = process
        self._name = name
        self._log = asyncio.create_task(self._forward_log())

    @classmethod
    async def start(cls, engine_name: str) -> Self:
        """Spawns, not forks: nothing of this process but the socket goes along."""
        options = PROCESS_OPTIONS.get(engine_name, ProcessOptions())
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # -P: a folder of this package's name where the user stands is not the package.
                *("-P", "-m", "exllamav3_adapters.host"),
                *("--fd", str(theirs.fileno()), "--parent", str(os.getpid())),
                *("--engine", engine_name, "--nice", str(options.niceness)),
                env={**options.environment, **os.environ},
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # Ctrl-C in a terminal reaches a whole group, before the child can have said that it ignores it.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            connection = await Connection.open(ours, wire.decode_to_parent)
        except BaseException:
            ours.close()
            process.kill()
            await process.wait()
            raise
        return cls(process, connection, engine_name)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> str:
        """Waits for the process to end; how it did, for the end of a sentence."""
        status = await self._process.wait()
        self._end_group()
        # What it wrote last says why; a grandchild that holds the pipe open must not hold us up.
        await asyncio.wait([self._log], timeout=0.2)
        return _how_it_ended(status)

    def kill(self) -> None:
        """Nothing happens to one that has ended."""
        if self._process.returncode is None:
            self._end_group()

    def _end_group(self) -> None:
        """It leads a group: what it started itself, a compiler or the processes of a tensor parallel model, ends too.

        Not `Process.kill`: it polls first, and so takes the exit status away from asyncio's watcher.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _forward_log(self) -> None:
        assert self._process.stderr is not None
        async for line in _lines(self._process.stderr):
            self.last_line = line
            found = _LOG_LINE.fullmatch(line)
            level, text = (found[1], found[2]) if found else ("INFO", line)
            logger.log(logging.getLevelNamesMapping()[level], "[%s %d] %s", self._name, self.pid, text)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines, cut where one is absurdly long; a progress bar's carriage return ends one too."""
    rest = b""
    while data := await stream.read(_READ_BYTES):
        *lines, rest = re.split(rb"[\r\n]+", rest + data)
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            if line.strip():
                yield line[:_MAX_LINE_BYTES].decode(errors="replace")
    if rest.strip():
        yield rest.decode(errors="replace")


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
