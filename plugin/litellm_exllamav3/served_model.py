"""One configured model's life: loaded, served, replaced when it dies, closed."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias

from exllamav3_adapters.contract import Engine, EngineInfo, LoadProgress, Mortal
from exllamav3_adapters.errors import EngineDied, EngineError, EngineUnavailable, LoadFailed
from litellm_exllamav3.admission import Admission
from litellm_exllamav3.backoff import Backoff
from litellm_exllamav3.prefix_collector import PrefixCollector
from litellm_exllamav3.replay import Replay
from litellm_exllamav3.request import Request

logger = logging.getLogger(__name__)

State: TypeAlias = Literal["lazy", "loading", "ready", "restarting", "failed", "closed"]
"""`lazy`: loads at the first request. `restarting`: died, or crashed while it loaded, and comes back by itself.
`failed`: stays down until the proxy is restarted."""

LoadEngine: TypeAlias = Callable[[Callable[[LoadProgress], None]], Awaitable[Engine]]
"""Loads this model's engine and reports its progress on the loop. Raises `LoadFailed` where another try is useless."""

CLOSE_SECONDS = 11.0
"""How long an engine may take to close before it is left behind; a hosted one kills its process after 10."""
LOG_PROGRESS_SECONDS = 5.0
LOG_WAITING_SECONDS = 15.0
STATS_SECONDS = 2.0
"""An engine that does not answer in that time is shown without its counters."""


class ServedModel:
    """All of it belongs to the loop that it is made on, and nothing here blocks that loop.

    An engine that dies is replaced (`Backoff`), and so is one that crashes while it loads. `LoadFailed` is final in the
    first load: it names a setting or a file that is wrong, and loading it again says the same again. Later it may as
    well be memory that is not free yet, and counts as one more crash. With `lazy` nobody waits for
    an engine that is gone, so the next request loads it and not a timer.
    """

    def __init__(
        self,
        key: str,
        *,
        load_engine: LoadEngine,
        lazy: bool = False,
        max_queue: int = 64,
        request_timeout_seconds: float = 600.0,
        new_replay: Callable[[Engine], Replay] | None = None,
        new_collector: Callable[[Engine], PrefixCollector] | None = None,
        on_loaded: Callable[[EngineInfo], None] | None = None,
        backoff: Backoff | None = None,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self.key = key
        self._close_seconds = close_seconds
        self.request_timeout_seconds = request_timeout_seconds
        self._load_engine = load_engine
        self._lazy = lazy
        self._new_replay = new_replay
        self._new_collector = new_collector
        self._on_loaded = on_loaded
        self._backoff = backoff or Backoff()
        self._admission = Admission(model_key=key, max_waiting=max_queue)
        self._loop = asyncio.get_running_loop()
        self._state: State = "lazy" if lazy else "loading"
        self._reason = ""
        self._engine: Engine | None = None
        self._next_engine: asyncio.Future[Engine] = self._loop.create_future()
        self._wanted = False
        """Whether a request waits for `_next_engine`."""
        self._death: asyncio.Future[EngineDied] = self._loop.create_future()
        self._supervisor: asyncio.Task[None] | None = None
        self._replay: Replay | None = None
        self._collector: PrefixCollector | None = None
        self._progress: LoadProgress | None = None
        self._load_began = 0.0
        self._load_seconds = 0.0
        """Of the last load that went well, 0 before that."""
        self._logged_progress_at = 0.0
        self._num_loads = 0

    @property
    def state(self) -> State:
        return self._state

    @property
    def reason(self) -> str:
        """Why the model is restarting, failed or closed; empty otherwise."""
        return self._reason

    @property
    def replay(self) -> Replay | None:
        """The replay into the engine that is loaded now, whether it runs or is done."""
        return self._replay

    def start(self) -> None:
        """Begins to load in the background, unless the model is lazy. Returns at once."""
        if not self._lazy:
            self._begin()

    def admit(self, timeout_seconds: float | None = None) -> Request:
        """A request's place in the queue, to be used as `async with`, before anything else is done for it.

        It ends after `timeout_seconds` or the model's `request_timeout_seconds`, whichever is shorter. Raises
        `QueueFull`, and `EngineUnavailable` if the model is failed or closed.
        """
        self._check_up()
        seconds = self.request_timeout_seconds
        if timeout_seconds is not None:
            seconds = min(seconds, timeout_seconds)
        now = self._loop.time()
        ticket = self._admission.admit(now, load_seconds_left=self._load_seconds_left(now))
        return Request(self, ticket, seconds)

    async def engine(self, deadline: float) -> Engine:
        """The loaded engine, which a lazy model begins to load now; waits until `deadline` (loop time).

        Raises `EngineUnavailable`: the deadline passed, the load failed or the model was closed.
        """
        self._check_up()
        if self._engine is not None:
            return self._engine
        self._begin()
        self._wanted = True
        try:
            async with asyncio.timeout_at(deadline):
                # Shielded: the future belongs to all who wait, and one of them may be cancelled.
                return await asyncio.shield(self._next_engine)
        except TimeoutError:
            raise EngineUnavailable(
                f"model '{self.key}' was not ready in time, {self._waited_for()}; try again later"
            ) from None
        except EngineUnavailable as error:
            # One object raised in many tasks would gather all their tracebacks.
            raise type(error)(error.message) from None

    async def engine_in_time(self) -> Engine:
        """As `engine`, with as much time as a request has."""
        return await self.engine(self._loop.time() + self.request_timeout_seconds)

    def engine_died(self, engine: Engine, error: EngineDied) -> None:
        """Tells the model that a call to `engine` ended so. Of several calls the first counts."""
        if engine is self._engine:
            # From here on new requests wait for the next engine.
            self._engine = None
            self._set_state("restarting", error.message)
            self._death.set_result(error)

    async def drop_from_replay(self, digest: str) -> None:
        """Leaves a captured head or chain out of the replay that runs now, if any."""
        if self._replay is not None:
            await self._replay.drop(digest)

    def collection_paused(self) -> AbstractAsyncContextManager[None]:
        """While it is entered, all that the engine has captured is in the store and nothing more comes there."""
        return nullcontext() if self._collector is None else self._collector.paused()

    async def collect_prefixes(self) -> None:
        """Brings what the engine has captured into the store, if it answers within seconds."""
        if self._collector is not None:
            await self._collector.collect()

    async def end_replays(self) -> None:
        """Ends the running replay; none begins any more, with no engine."""
        self._new_replay = None
        if self._replay is not None:
            await self._replay.stop()

    async def close(self) -> None:
        """Ends the load, the replay and every request, and closes the engine. May be called more than once.

        Returns within `close_seconds` and a little, also if the engine hangs.
        """
        if self._state == "closed":
            return
        self._set_state("closed", "the gateway is shutting down")
        self._fail_waiting(EngineUnavailable(f"model '{self.key}' is closed: {self._reason}"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor], timeout=self._close_seconds + 1)

    async def stats(self) -> dict[str, Any]:
        """Plain values: the state, the queue, the engine's counters and the replay's progress."""
        engine = self._engine
        return {
            "state": self._state,
            "reason": self._reason,
            "loads": self._num_loads,
            "load_seconds": round(self._load_seconds, 3),
            "requests_waiting": self._admission.num_waiting,
            "requests_active": self._admission.num_active,
            "engine": None if engine is None else await _engine_stats(engine),
            "replay": None if self._replay is None else self._replay.stats(),
        }

    def _begin(self) -> None:
        if self._supervisor is None or self._supervisor.done():
            self._supervisor = self._loop.create_task(self._supervise(), name=f"supervise {self.key}")

    async def _supervise(self) -> None:
        try:
            await self._load_and_serve()
        except Exception as error:
            logger.exception("model %s: a fault of the gateway's own", self.key)
            self._fail(EngineUnavailable(f"the gateway itself failed ({type(error).__name__}); see its log"))

    async def _load_and_serve(self) -> None:
        """Until the model stays down or, if it is lazy, until its engine is gone."""
        while True:
            fault = await self._live()
            if isinstance(fault, LoadFailed):
                self._fail(fault)
                return
            pause = self._backoff.died(self._loop.time())
            if pause is None:
                self._fail(self._stays_down(fault))
                return
            self._set_state("restarting", fault.message)
            if self._lazy and not self._wanted:
                logger.warning("model %s: %s; the next request loads it again", self.key, fault.message)
                return
            logger.warning("model %s: %s; loading it again in %g s", self.key, fault.message, pause)
            await asyncio.sleep(pause)

    async def _live(self) -> LoadFailed | EngineDied:
        """From one load to the engine's end. Returns why it ended."""
        try:
            engine = await self._load()
        except Exception as error:
            if isinstance(error, LoadFailed) and not self._load_seconds:
                return error
            logger.debug("model %s: the load ended", self.key, exc_info=True)
            reason = error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            what = "could not be loaded again" if isinstance(error, LoadFailed) else "crashed while it loaded"
            fault = EngineDied(f"model '{self.key}' {what}: {reason}")
            self._fail_waiting(fault)
            return fault
        try:
            self._become_ready(engine)
            return await self._until_death(engine)
        finally:
            self._engine = None
            await self._close_engine(engine)

    async def _load(self) -> Engine:
        if self._state == "lazy":
            self._set_state("loading", "")
        self._progress = None
        self._load_began = self._loop.time()
        self._num_loads += 1
        logger.info("model %s: loading; the engine's process starts", self.key)
        heartbeat = self._loop.create_task(self._log_while_loading())
        try:
            return await self._load_engine(self._report)
        finally:
            heartbeat.cancel()

    async def _log_while_loading(self) -> None:
        """A step can take long without a word, on a busy machine above all: importing torch, reading weights."""
        while True:
            await asyncio.sleep(LOG_WAITING_SECONDS)
            seconds = self._loop.time() - self._load_began
            logger.info("model %s: %s after %.0f s", self.key, self._waited_for(), seconds)

    def _become_ready(self, engine: Engine) -> None:
        self._load_seconds = self._loop.time() - self._load_began
        info = engine.info
        settings = ", ".join(f"{name}: {value}" for name, value in info.effective_settings.items())
        logger.info(
            "model %s: ready after %.1f s on engine %s, context %d, cache %d tokens; %s",
            self.key, self._load_seconds, info.engine, info.context_length, info.cache_tokens, settings,
        )  # fmt: skip
        self._death = self._loop.create_future()
        self._engine = engine
        self._set_state("ready", "")
        if self._on_loaded is not None:
            self._on_loaded(info)
        self._wait_anew().set_result(engine)

    async def _until_death(self, engine: Engine) -> EngineDied:
        if self._new_replay is not None:
            self._replay = self._new_replay(engine)
            self._replay.start(partial(self.engine_died, engine))
        if self._new_collector is not None:
            self._collector = self._new_collector(engine)
            self._collector.start()
        watch = self._loop.create_task(self._watch(engine))
        try:
            return await self._death
        finally:
            watch.cancel()
            if self._replay is not None:
                await self._replay.stop()
            if self._collector is not None:
                await self._collector.stop()

    async def _watch(self, engine: Engine) -> None:
        """Ends the life of an engine that can say by itself that it died."""
        if isinstance(engine, Mortal) and (error := await engine.died()) is not None:
            self.engine_died(engine, error)

    async def _close_engine(self, engine: Engine) -> None:
        try:
            async with asyncio.timeout(self._close_seconds):
                await engine.close()
        except TimeoutError:
            logger.warning("model %s: the engine did not close within %g s; left behind", self.key, self._close_seconds)
        except EngineError as error:
            logger.debug("model %s: closing the engine: %s", self.key, error.message)

    def _fail(self, error: EngineUnavailable) -> None:
        logger.error("model %s: %s", self.key, error.message)
        self._set_state("failed", error.message)
        self._fail_waiting(error)

    def _fail_waiting(self, error: EngineUnavailable) -> None:
        waiting = self._wait_anew()
        waiting.set_exception(error)
        waiting.exception()  # Retrieved: it is no fault if nobody waited.

    def _wait_anew(self) -> asyncio.Future[Engine]:
        """What requests wait for until now; whoever comes later waits for the engine after that."""
        waiting, self._next_engine = self._next_engine, self._loop.create_future()
        self._wanted = False
        return waiting

    def _stays_down(self, fault: EngineError) -> EngineUnavailable:
        minutes = self._backoff.window_seconds / 60
        return EngineUnavailable(
            f"model '{self.key}' died {self._backoff.max_deaths} times within {minutes:g} minutes and stays down; "
            f"the last time: {fault.message}. Remove the cause and restart the proxy"
        )

    def _check_up(self) -> None:
        if self._state in ("failed", "closed"):
            raise EngineUnavailable(f"model '{self.key}' is not available: {self._reason}")

    def _set_state(self, state: State, reason: str) -> None:
        self._state = state
        self._reason = reason

    def _report(self, progress: LoadProgress) -> None:
        self._progress = progress
        now = self._loop.time()
        if now - self._logged_progress_at >= LOG_PROGRESS_SECONDS:
            self._logged_progress_at = now
            logger.info("model %s: loading, %s %d/%d", self.key, progress.stage, progress.done, progress.total)

    def _waited_for(self) -> str:
        what = "still loading"
        if self._state == "restarting":
            what = f"being restarted ({self._reason})"
        if self._progress is not None:
            what += f", {self._progress.stage} {self._progress.done}/{self._progress.total}"
        return what

    def _load_seconds_left(self, now: float) -> float:
        """An estimate from the last load, or from how far this one is; 0 when nothing loads or nothing is known."""
        if self._engine is not None or not self._num_loads:
            return 0.0
        spent = now - self._load_began
        if self._load_seconds:
            return max(0.0, self._load_seconds - spent)
        if self._progress is not None and self._progress.done:
            return spent * (self._progress.total / self._progress.done - 1)
        return 0.0


async def _engine_stats(engine: Engine) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(STATS_SECONDS):
            return dataclasses.asdict(await engine.stats())
    except (EngineError, TimeoutError):
        return None
