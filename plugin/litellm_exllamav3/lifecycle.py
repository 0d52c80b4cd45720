"""Start and stop beside a server that offers no hook for either: its signals and its shutdown function."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType, ModuleType
from typing import Any, TypeAlias

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
CHECK_SECONDS = 1.0
"""How soon a handler that was installed after ours is chained."""

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
"""What `signal.getsignal` returns."""


class Lifecycle:
    """Hears of the end as early as the process does, and has the last word before it.

    `on_signal` is called on the loop at SIGTERM and SIGINT, before the server begins to wait for its open streams
    (30 s with LiteLLM). `stop` is awaited in the server's shutdown, or at the signal where no server handles it. Both
    may be called more than once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_signal: Callable[[], None],
        stop: Callable[[], Awaitable[None]],
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._loop = loop
        self._on_signal = on_signal
        self._stop = stop
        self._check_seconds = check_seconds
        self._links: dict[signal.Signals, _Link] = {}
        self._check: asyncio.TimerHandle | None = None
        self._last_stop: asyncio.Task[None] | None = None

    def chain_signals(self) -> bool:
        """Puts our handlers before the present ones, and before those installed later, within `check_seconds`.

        To be called on the loop. False, and nothing done, outside the main thread, where Python has no signals.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        for sig in SIGNALS:
            previous = signal.getsignal(sig)
            if not self._is_ours(previous):
                # A new link each time. Whoever saved an earlier one may put it back: it still leads where it led.
                self._links[sig] = _Link(self, previous)
                signal.signal(sig, self._links[sig])
        self._check = self._loop.call_later(self._check_seconds, self.chain_signals)
        return True

    def unchain_signals(self) -> None:
        """Puts back what was there before ours, where ours is still the first."""
        if self._check is not None:
            self._check.cancel()
        for sig, link in self._links.items():
            previous = link.previous
            # None stands for a handler that was not installed from Python; that cannot be put back.
            if signal.getsignal(sig) is link and previous is not None:
                signal.signal(sig, previous)
        self._links.clear()

    def wrap_shutdown(self, module: ModuleType, name: str = "proxy_shutdown_event") -> bool:
        """Has `stop` awaited before the module's coroutine function of that name. False if there is none."""
        original = getattr(module, name, None)
        if original is None:
            logger.warning("%s has no %s: engines are closed at the signal only", module.__name__, name)
            return False
        if isinstance(original, _Shutdown):
            return True
        setattr(module, name, _Shutdown(original, self._stop))
        return True

    def signalled(self) -> None:
        """In the signal's handler, between any two instructions of the main thread: hands over to the loop."""
        self._to_loop(self._on_signal)

    def stop_and_end(self, sig: int) -> None:
        """In the signal's handler, where the signal's default is to end the process: `stop` first, then that.

        The second signal does not wait.
        """
        if self._last_stop is not None or not self._to_loop(self._begin_last_stop, sig):
            _end_by(sig)

    def _is_ours(self, handler: object) -> bool:
        return isinstance(handler, _Link) and handler.lifecycle is self

    def _begin_last_stop(self, sig: int) -> None:
        if self._last_stop is None:
            self._last_stop = self._loop.create_task(self._stop_then_end(sig))

    async def _stop_then_end(self, sig: int) -> None:
        try:
            await self._stop()
        except Exception:
            logger.exception("the gateway did not stop in order")
        finally:
            _end_by(sig)

    def _to_loop(self, callback: Callable[..., None], *args: object) -> bool:
        """False if the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return False
        return True


class _Link:
    """Our handler, in front of one other."""

    def __init__(self, lifecycle: Lifecycle, previous: Handler) -> None:
        self.lifecycle = lifecycle
        self.previous = previous

    def __call__(self, sig: int, frame: FrameType | None) -> None:
        self.lifecycle.signalled()
        if callable(self.previous):
            self.previous(sig, frame)
        elif self.previous == signal.SIG_DFL:
            self.lifecycle.stop_and_end(sig)


class _Shutdown:
    """A shutdown coroutine function with ours before it, which never keeps it from running."""

    def __init__(self, original: Callable[..., Awaitable[Any]], stop: Callable[[], Awaitable[None]]) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._stop = stop

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            await self._stop()
        except Exception:
            logger.exception("the gateway did not stop in order")
        return await self._original(*args, **kwargs)


def _end_by(sig: int) -> None:
    signal.signal(sig, signal.SIG_DFL)
    signal.raise_signal(sig)
