"""All that one proxy serves: its settings, its store of heads and its models."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from exllamav3_adapters.contract import Chat, Engine, EngineInfo, StoredPrefix
from exllamav3_adapters.credit_path import drop_credit
from litellm_exllamav3.backoff import Backoff
from litellm_exllamav3.capture import Capture, CapturedHead
from litellm_exllamav3.config_file import load_settings
from litellm_exllamav3.engine_loading import EngineLoader, load_hosted
from litellm_exllamav3.forgetting import Forgetting, Forgotten
from litellm_exllamav3.prefix_collector import PrefixCollector
from litellm_exllamav3.replay import Replay
from litellm_exllamav3.served_model import CLOSE_SECONDS, ServedModel
from litellm_exllamav3.settings import ModelSettings, Settings
from litellm_exllamav3.store.errors import StoreUnavailable
from litellm_exllamav3.store.records import StoredChain
from litellm_exllamav3.warm_sources import WarmSources
from litellm_exllamav3.workers import WorkerLock, refuse_more_workers

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0
"""How long the store may take to write or to open before a stop goes on without it."""


async def open_capture(settings: Settings) -> Capture:
    """The store of a gateway with these settings. Raises as `Capture.open`."""
    return await Capture.open(
        Path(settings.state_dir),
        {key: model.capture for key, model in settings.models.items()},
        max_chains={key: model.memory.aging_prefix_max_entries for key, model in settings.models.items()},
    )


class Gateway:
    """Belongs to the loop that it is opened on. `open`, `start` and `begin_stop` return at once.

    Two gateways may use one `state_dir`, but a proxy has one worker.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        load_engine: EngineLoader = load_hosted,
        close_seconds: float = CLOSE_SECONDS,
        on_loaded: Callable[[EngineInfo], None] | None = None,
    ) -> None:
        """Raises `TooManyWorkers` beside a sibling worker's gateway. `close_seconds` bounds an engine's end.

        `on_loaded` is called on the loop whenever a model has been loaded, before its first request.
        """
        self.settings = settings
        self._load_engine = load_engine
        self._close_seconds = close_seconds
        self._on_loaded = on_loaded
        self._state_dir = Path(settings.state_dir)
        with contextlib.suppress(OSError):
            # The store says what is wrong with a folder that cannot be made.
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = WorkerLock.of_this_process(self._state_dir)
        self._capture: Capture | None = None
        self._opening: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._models = {key: self._served_model(key, model) for key, model in settings.models.items()}

    @classmethod
    def open(
        cls,
        config_path: str | Path,
        environ: Mapping[str, str],
        *,
        load_engine: EngineLoader = load_hosted,
        on_loaded: Callable[[EngineInfo], None] | None = None,
    ) -> Gateway:
        """Reads the config file; loads and opens nothing yet.

        Raises `SettingsError`, which lists every fault of the file, and `TooManyWorkers`.
        """
        refuse_more_workers(environ)
        return cls(load_settings(config_path, environ), load_engine=load_engine, on_loaded=on_loaded)

    @property
    def capture(self) -> Capture | None:
        """None until the store has been opened, a moment after `start`, and where it cannot be."""
        return self._capture

    def start(self) -> None:
        """Opens the store and begins to load the models, all in the background. Once."""
        self.open_store()
        for model in self._models.values():
            model.start()

    def open_store(self) -> None:
        """Opens the store in the background and loads nothing, for work on the heads alone. Once."""
        assert self._opening is None, "a gateway starts once"
        self._opening = asyncio.get_running_loop().create_task(self._open_capture(), name="open the store")

    def model(self, key: str) -> ServedModel | None:
        """The model under that key of `exllamav3_settings.models`. None: there is no such."""
        return self._models.get(key)

    @property
    def models(self) -> Mapping[str, ServedModel]:
        return self._models

    async def stats(self) -> dict[str, Any]:
        """Plain values: each model's state, engine and replay (`ServedModel.stats`), and the capture's counts."""
        return {
            "models": {key: await model.stats() for key, model in self._models.items()},
            "capture": None if self._capture is None else asdict(self._capture.stats()),
        }

    async def forget(self, model_key: str, digest: str) -> Forgotten | None:
        """Removes a captured head or chain everywhere: store, running replay, every tier of the engine's cache.

        So goes every chain that shares a page with it; all of the model's, where a head's tokens cannot be told, and
        all credit of its pages where no engine is asked. None if there is no such digest. Raises `StoreUnavailable` if
        the store cannot be written; nothing else was done then.
        """
        capture = await self._opened_capture()
        if capture is None:
            raise StoreUnavailable("the store is not open; see the log for the reason")
        model = self._models.get(model_key)
        asked = model if model is not None and self._may_hold_pages(model) else None
        forgotten = await Forgetting(model_key, capture, asked).forget(digest)
        if forgotten is not None and (asked is None or forgotten.num_pages is None):
            return await self._without_credit(model_key, forgotten)
        return forgotten

    def begin_stop(self) -> None:
        """To be called at the signal, long before `stop`: ends replays and writes what the store holds back."""
        if self._flushing is None and self._stopping is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name="flush at the signal")

    async def stop(self) -> None:
        """Ends replays and jobs, writes the store, closes the engines and leaves no process. May be called again.

        An engine that hangs is given `close_seconds`, the store `FLUSH_SECONDS`, side by side.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="stop the gateway")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        # What the engines have captured goes before the store that takes it.
        await self._collect_prefixes()
        await asyncio.gather(*(model.close() for model in self._models.values()), self._close_capture())
        self._lock.release()
        logger.info("the gateway has stopped")

    async def _flush(self) -> None:
        await asyncio.gather(*(model.end_replays() for model in self._models.values()), self._collect_prefixes())
        if self._capture is not None:
            await _in_time(self._capture.flush(), "flush")

    async def _collect_prefixes(self) -> None:
        await asyncio.gather(*(model.collect_prefixes() for model in self._models.values()))

    async def _close_capture(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=FLUSH_SECONDS)
            self._opening.cancel()
        if self._capture is not None:
            await _in_time(self._capture.close(), "close")

    async def _open_capture(self) -> None:
        try:
            self._capture = await open_capture(self.settings)
        except Exception:
            logger.exception("the store of heads cannot be opened; nothing is captured or replayed from it")

    def _served_model(self, key: str, settings: ModelSettings) -> ServedModel:
        engine_settings = self.settings.engine_settings(key)
        sources = self._warm_sources(key, settings)

        def new_replay(engine: Engine) -> Replay:
            return Replay(key, engine, sources)

        def new_collector(engine: Engine) -> PrefixCollector:
            return PrefixCollector(key, engine, partial(self._keep_chains, key))

        return ServedModel(
            key,
            load_engine=partial(self._load_engine, settings.engine, engine_settings),
            lazy=settings.load == "lazy",
            max_queue=settings.max_queue,
            request_timeout_seconds=settings.request_timeout_seconds,
            new_replay=new_replay,
            new_collector=new_collector if settings.collects_prefixes else None,
            on_loaded=self._on_loaded,
            backoff=Backoff(),
            close_seconds=self._close_seconds,
        )

    def _warm_sources(self, key: str, settings: ModelSettings) -> WarmSources:
        """What is configured is warmed in any case; `replay` is about what was captured."""
        memory = settings.memory
        wanted = settings.replay and memory.warm_prefix_max_tokens != 0
        return WarmSources(
            token_ids=memory.warm_prefix_token_ids,
            texts=memory.warm_prefixes,
            chats=[Chat(messages=chat.messages, tools=chat.tools) for chat in memory.warm_prompts],
            captured=partial(self._captured, key) if wanted else None,
            chains=partial(self._chains, key) if wanted else None,
            max_captured_tokens=memory.warm_prefix_max_tokens,
        )

    async def _captured(self, key: str) -> Sequence[CapturedHead]:
        capture = await self._opened_capture()
        try:
            return () if capture is None else await capture.entries(key)
        except StoreUnavailable as error:
            logger.warning("model %s: captured heads cannot be replayed: %s", key, error)
            return ()

    async def _chains(self, key: str) -> Sequence[StoredChain]:
        capture = await self._opened_capture()
        try:
            return () if capture is None else await capture.chains.entries(key)
        except StoreUnavailable as error:
            logger.warning("model %s: the engine's own prefixes cannot be replayed: %s", key, error)
            return ()

    async def _keep_chains(self, key: str, prefixes: Sequence[StoredPrefix]) -> None:
        capture = await self._opened_capture()
        if capture is not None:
            await capture.chains.keep(key, prefixes)

    async def _opened_capture(self) -> Capture | None:
        """None: it could not be opened."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        return self._capture

    async def _without_credit(self, model_key: str, forgotten: Forgotten) -> Forgotten:
        """No engine has taken the hashes of its pages out of the credit that is kept, so none is kept."""
        settings = self.settings.models.get(model_key)
        folder = (settings and settings.memory.aging_persist_dir) or self.settings.credits_dir
        try:
            if await asyncio.to_thread(drop_credit, folder, model_key):
                logger.info("model %s: all credit of its pages was removed with what was forgotten", model_key)
        except OSError as error:
            reason = f"the credit of its pages cannot be removed ({error.strerror})"
            return replace(forgotten, num_pages=None, reason=forgotten.reason or reason)
        return forgotten

    def _may_hold_pages(self, model: ServedModel) -> bool:
        """A model that is not loaded holds pages only on disk."""
        memory = self.settings.models[model.key].memory
        return model.state == "ready" or memory.disk_cache_dir is not None


async def _in_time(call: Awaitable[object], what: str) -> None:
    try:
        await asyncio.wait_for(call, FLUSH_SECONDS)
    except TimeoutError:
        logger.error("the store did not %s within %g s; the last second of counts may be lost", what, FLUSH_SECONDS)
    except StoreUnavailable as error:
        logger.error("the store could not %s: %s", what, error)
