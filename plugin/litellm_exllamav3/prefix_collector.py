"""Brings what an engine captures by itself into the store, while the engine lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from exllamav3_adapters.contract import Engine, StoredPrefix
from exllamav3_adapters.errors import EngineError

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_ROUNDS = 5.0
"""A crash loses at most what was captured in that time. An engine writes a prefix that stays hot every few minutes."""
ANSWER_SECONDS = 30.0
"""For a round. An engine answers between two steps, and a step may be a long one."""
LAST_ANSWER_SECONDS = 2.0
"""For a round that something waits for, such as the end of the process."""


class PrefixCollector:
    """Asks one engine every few seconds, on the loop, for the prefixes that it has captured since.

    `start` once, `stop` at any moment. An engine that dies ends it, and one that does not answer is asked again later.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        keep: Callable[[Sequence[StoredPrefix]], Awaitable[None]],
        *,
        seconds_between_rounds: float = SECONDS_BETWEEN_ROUNDS,
        last_answer_seconds: float = LAST_ANSWER_SECONDS,
    ) -> None:
        """`name` is the model's, for the log. `keep` is given the news, most recently written first."""
        self._name = name
        self._engine = engine
        self._keep = keep
        self._seconds_between_rounds = seconds_between_rounds
        self._last_answer_seconds = last_answer_seconds
        self._written_after = 0.0
        self._rounds = asyncio.Lock()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None, "a collector runs once"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"collect prefixes of {self._name}")

    async def collect(self) -> None:
        """One more round, out of turn, for at most `last_answer_seconds`."""
        await self._round(self._last_answer_seconds)

    async def stop(self) -> None:
        """A last round, then the end. To be called before the engine is closed; may be called more than once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.collect()
        self._ended = True

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """All that the engine has captured is kept by now, and nothing more is until this ends."""
        await self.collect()
        async with self._rounds:
            yield

    async def _run(self) -> None:
        while not self._ended:
            await self._round(ANSWER_SECONDS)
            await asyncio.sleep(self._seconds_between_rounds)

    async def _round(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._rounds:
                await self._ask()
        except TimeoutError:
            logger.debug("model %s: the engine did not name its prefixes within %g s", self._name, seconds)
        except EngineError as error:
            logger.debug("model %s: no more prefixes are collected: %s", self._name, error.message)
            self._ended = True
        except Exception:
            logger.exception("model %s: the engine's prefixes can no longer be collected", self._name)
            self._ended = True

    async def _ask(self) -> None:
        if self._ended:
            return
        found = await self._engine.stored_prefixes(self._written_after)
        if found:
            await self._keep(found)
            self._written_after = max(prefix.written_at for prefix in found)
