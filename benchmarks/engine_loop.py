"""What the proxy is held against: exllamav3's synchronous loop in a process of its own, asked over pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from answer import Answer

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.process_options import PROCESS_OPTIONS

_LINE_BYTES = 1 << 20


class LoopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Chats that run together, greedily."""

    chats: list[list[dict[str, Any]]]
    max_tokens: int
    min_tokens: int = 0


class LoopAnswers(msgspec.Struct, frozen=True, kw_only=True):
    answers: list[Answer]
    prefill_steps: list[float]
    """Seconds of each step of the generator before the first token: one chunk each, the last one decodes too."""


class EngineLoopClient:
    """Idle, and free of cost, while it is not asked: measure the proxy meanwhile."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, *chats: list[dict[str, Any]], max_tokens: int, min_tokens: int = 0) -> LoopAnswers:
        await self._send(LoopRequest(chats=list(chats), max_tokens=max_tokens, min_tokens=min_tokens))
        return await self._receive()

    async def load(self, settings: EngineSettings) -> None:
        await self._send(settings)
        await self._receive()

    async def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")
        await self._process.stdin.drain()

    async def _receive(self) -> LoopAnswers:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the engine's loop ended; what it wrote above says why")
        return msgspec.json.decode(line, type=LoopAnswers)


@asynccontextmanager
async def engine_loop(settings: EngineSettings) -> AsyncIterator[EngineLoopClient]:
    """Started as the gateway starts its engine: the same environment, the same priority."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__).with_name("engine_loop_process.py"),
        env={**PROCESS_OPTIONS["cpu"].environment, **os.environ},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        # As the gateway does. With autogroups Linux weighs whole sessions, and a priority counts only inside of one.
        start_new_session=True,
    )
    try:
        client = EngineLoopClient(process)
        await client.load(settings)
        yield client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
