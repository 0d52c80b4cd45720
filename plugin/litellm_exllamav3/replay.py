"""Brings hot prefixes back into an engine's cache after it was loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from exllamav3_adapters.contract import Engine, Prefilled, PrefillProgress
from exllamav3_adapters.errors import EngineDied, EngineError, EngineUnavailable
from litellm_exllamav3.prefix_plan import Prefix, PrefixPlan, plan_prefixes
from litellm_exllamav3.warm_sources import WarmItem, WarmSources

logger = logging.getLogger(__name__)

State: TypeAlias = Literal["pending", "rendering", "prefilling", "done", "stopped", "failed"]

LOG_SECONDS = 5.0


@dataclass(kw_only=True, slots=True)
class ReplayStats:
    """Of one replay, so far."""

    state: State = "pending"
    seconds: float = 0.0
    items_total: int = 0
    items_done: int = 0
    """Those that need nothing more: replayed, folded or skipped."""
    items_folded: int = 0
    """Beginnings of a longer prefix, which brings them along."""
    items_skipped: int = 0
    """Over the budget, forgotten, refused by the template or too long."""
    tokens_total: int = 0
    """In the prefixes that are replayed."""
    tokens_done: int = 0
    """Of those: warmed, cached or in a prefix that failed half way."""
    tokens_warmed: int = 0
    """Computed by this replay."""
    tokens_cached: int = 0
    """Found in the cache or in a tier behind it."""
    tokens_skipped: int = 0
    """Of the skipped items, as far as they were rendered."""
    tokens_pinned: int = 0
    tokens_not_pinned: int = 0
    """In whole pages of configured prefixes, beyond `pin_max_fraction`."""


class Replay:
    """One replay into one engine, on the loop. It delays no request: `Engine.prefill` yields to any.

    `start` once, `stop` at any moment. `name` is the model's, for the log, where no word of a prefix appears.
    """

    def __init__(self, name: str, engine: Engine, sources: WarmSources, *, log_seconds: float = LOG_SECONDS) -> None:
        self._log_seconds = log_seconds
        self._name = name
        self._engine = engine
        self._sources = sources
        self._stats = ReplayStats()
        self._loop = asyncio.get_running_loop()
        self._began = self._logged_at = 0.0
        self._dropped: set[str] = set()
        self._current: tuple[Prefix, asyncio.Task[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, on_engine_died: Callable[[EngineDied], None] | None = None) -> None:
        """Begins in the background. `on_engine_died` is called if that is how it ends."""
        assert self._task is None, "a replay runs once"
        self._task = self._loop.create_task(self._run(on_engine_died), name=f"replay {self._name}")

    async def stop(self) -> None:
        """Returns when it has ended and its job is cancelled. May be called more than once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait(self) -> None:
        """Returns when it has ended, one way or another."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def drop(self, digest: str) -> None:
        """Leaves a captured head or chain out from here on, also if it is being prefilled at this moment."""
        self._dropped.add(digest)
        if self._current is not None and self._current[0].digest == digest:
            task = self._current[1]
            task.cancel()
            await asyncio.wait([task])

    def stats(self) -> dict[str, Any]:
        """`ReplayStats` as plain values."""
        if self._stats.state in ("rendering", "prefilling"):
            self._stats.seconds = self._loop.time() - self._began
        return asdict(self._stats)

    async def _run(self, on_engine_died: Callable[[EngineDied], None] | None) -> None:
        self._began = self._logged_at = self._loop.time()
        try:
            await self._prefill_all(await self._plan())
            self._end("done")
        except asyncio.CancelledError:
            self._end("stopped")
            raise
        except EngineError as error:
            self._end("failed", error.message)
            if isinstance(error, EngineDied) and on_engine_died is not None:
                on_engine_died(error)
        except Exception:
            logger.exception("model %s: the replay failed", self._name)
            self._end("failed")

    async def _plan(self) -> PrefixPlan:
        self._stats.state = "rendering"
        items = await self._sources.items(self._engine)
        self._stats.items_total = len(items)
        rendered = [prefix for item in items if (prefix := await self._rendered(item)) is not None]
        configured = [prefix for prefix in rendered if prefix.pin]
        captured = [prefix for prefix in rendered if not prefix.pin]
        budget = self._sources.max_captured_tokens
        if budget is None:
            budget = self._engine.info.cache_tokens - sum(map(self._whole_pages, configured))
        # Hundreds of heads of ten thousand tokens take a noticeable part of a second.
        plan = await asyncio.to_thread(plan_prefixes, configured, captured, max_captured_tokens=budget)
        self._stats.items_folded = plan.num_folded
        self._stats.items_skipped += plan.num_over_budget
        self._stats.items_done += plan.num_folded + plan.num_over_budget
        self._stats.tokens_skipped += plan.tokens_over_budget
        self._stats.tokens_total = sum(len(prefix.prompt.token_ids) for prefix in plan.prefixes)
        return plan

    async def _rendered(self, item: WarmItem) -> Prefix | None:
        """The item in tokens; None, and a line in the log, where the template or the context has no place for it."""
        try:
            prompt = await item.render()
        except EngineUnavailable:
            raise
        except EngineError as error:
            self._skip(item.name, 0, f"{type(error).__name__}")
            return None
        most = min(self._engine.info.context_length, self._engine.info.cache_tokens)
        if not prompt.token_ids:
            self._skip(item.name, 0, "the model's template puts nothing of it first")
        elif len(prompt.token_ids) > most:
            self._skip(item.name, len(prompt.token_ids), f"{len(prompt.token_ids)} tokens do not fit into {most}")
        else:
            return Prefix(name=item.name, prompt=prompt, pin=item.pin, digest=item.digest)
        return None

    async def _prefill_all(self, plan: PrefixPlan) -> None:
        self._stats.state = "prefilling"
        if self._stats.items_total:
            logger.info(
                "model %s: replaying %d of %d prefixes, %d tokens; %d are part of others, %d skipped",
                self._name, len(plan.prefixes), self._stats.items_total, self._stats.tokens_total,
                self._stats.items_folded, self._stats.items_skipped,
            )  # fmt: skip
        pins_left = sum(prefix.pin for prefix in plan.prefixes)
        for prefix in plan.prefixes:
            await self._prefill_unless_dropped(prefix)
            pins_left -= prefix.pin
            if prefix.pin and not pins_left:
                self._warn_of_pins()

    async def _prefill_unless_dropped(self, prefix: Prefix) -> None:
        """In a task of its own, which `drop` may cancel."""
        if prefix.digest not in self._dropped:
            task = self._loop.create_task(self._prefill(prefix))
            self._current = prefix, task
            try:
                await asyncio.wait([task])
            finally:
                self._current = None
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                return task.result()
        return self._skip(prefix.name, len(prefix.prompt.token_ids), "it was forgotten")

    async def _prefill(self, prefix: Prefix) -> None:
        num_tokens = len(prefix.prompt.token_ids)
        done_before = self._stats.tokens_done
        stream = self._engine.prefill(prefix.prompt, pin=prefix.pin)
        try:
            async for event in stream:
                if isinstance(event, PrefillProgress):
                    self._stats.tokens_done = done_before + event.done_tokens
                    self._log_progress()
                elif isinstance(event, Prefilled):
                    self._count(prefix, event)
        except EngineUnavailable:
            raise
        except EngineError as error:
            self._skip(prefix.name, num_tokens, type(error).__name__)
        finally:
            await stream.aclose()
            self._stats.tokens_done = done_before + num_tokens

    def _count(self, prefix: Prefix, event: Prefilled) -> None:
        stats = self._stats
        stats.items_done += 1
        stats.tokens_cached += event.cached_tokens
        stats.tokens_warmed += event.prompt_tokens - event.cached_tokens
        stats.tokens_pinned += event.pinned_tokens
        if prefix.pin:
            stats.tokens_not_pinned += max(0, self._whole_pages(prefix) - event.pinned_tokens)

    def _skip(self, name: str, num_tokens: int, reason: str) -> None:
        """`reason` is ours: an engine's message might quote the prefix."""
        self._stats.items_skipped += 1
        self._stats.items_done += 1
        self._stats.tokens_skipped += num_tokens
        logger.warning("model %s: replay skips %s: %s", self._name, name, reason)

    def _whole_pages(self, prefix: Prefix) -> int:
        """Tokens in the full pages of a prefix, which alone can be pinned."""
        return len(prefix.prompt.token_ids) // self._engine.info.page_size * self._engine.info.page_size

    def _warn_of_pins(self) -> None:
        if self._stats.tokens_not_pinned:
            logger.warning(
                "model %s: %d tokens of the configured prefixes are beyond pin_max_fraction and may be evicted; "
                "configure fewer, enlarge cache_size or raise pin_max_fraction",
                self._name, self._stats.tokens_not_pinned,
            )  # fmt: skip

    def _log_progress(self) -> None:
        now = self._loop.time()
        if now - self._logged_at < self._log_seconds:
            return
        self._logged_at = now
        stats = self._stats
        logger.info(
            "model %s: replay: %d of %d prefixes, %d of %d tokens",
            self._name, stats.items_done, stats.items_total, stats.tokens_done, stats.tokens_total,
        )  # fmt: skip

    def _end(self, state: State, reason: str = "") -> None:
        stats = self._stats
        stats.state = state
        stats.seconds = self._loop.time() - self._began
        if stats.items_total:
            logger.info(
                "model %s: replay %s%s after %.1f s: %d of %d prefixes; tokens: %d warmed, %d cached, %d skipped, "
                "%d pinned",
                self._name, state, f" ({reason})" if reason else "", stats.seconds, stats.items_done,
                stats.items_total, stats.tokens_warmed, stats.tokens_cached, stats.tokens_skipped,
                stats.tokens_pinned,
            )  # fmt: skip
