"""A load blocks for minutes: it runs on a thread of its own, and its report is where it can be stopped."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from exllamav3_adapters.contract import Engine, LoadProgress

Report: TypeAlias = Callable[[LoadProgress], None]

log = logging.getLogger(__name__)


class LoadStopped(Exception):
    """Raised by a report whose load has been cancelled. What the load holds by then is for it to free."""


async def load_on_thread(load: Callable[[Report], Engine], report: Report) -> Engine:
    """Runs `load` on a thread that lives as long as the loop: the kernel ends some processes that a load starts with
    the thread that started them. `report` is called on the loop.

    Cancelling it makes the load's next report raise `LoadStopped`, and waits until the thread has ended: what was
    allocated is free then. An engine that was loaded all the same is closed. Raises what `load` raises.
    """
    loop = asyncio.get_running_loop()
    stopped = threading.Event()

    def report_or_stop(progress: LoadProgress) -> None:
        if stopped.is_set():
            raise LoadStopped
        loop.call_soon_threadsafe(report, progress)

    loading = asyncio.ensure_future(asyncio.to_thread(load, report_or_stop))
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        stopped.set()
        await _end(loading)
        raise


async def _end(loading: asyncio.Future[Engine]) -> None:
    try:
        engine = await asyncio.shield(loading)
    except LoadStopped:
        return
    except Exception as error:
        log.info("a cancelled load failed with %s", type(error).__name__)
        return
    await engine.close()
