"""When an engine that died is replaced, and when no more."""

from __future__ import annotations

from collections import deque


class Backoff:
    """Decides on restarts. Times are seconds of any one monotonic clock.

    The pause doubles with each death that follows another within `window_seconds`, from `first_seconds` to
    `longest_seconds`. After `max_deaths` within the window the engine stays down: a model that keeps dying takes its
    callers' time with every load and helps nobody.
    """

    def __init__(
        self,
        *,
        first_seconds: float = 0.5,
        longest_seconds: float = 30.0,
        max_deaths: int = 3,
        window_seconds: float = 600.0,
    ) -> None:
        self.max_deaths = max_deaths
        self.window_seconds = window_seconds
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._recent: deque[float] = deque(maxlen=max_deaths)
        self._in_a_row = 0

    def died(self, now: float) -> float | None:
        """Seconds to wait before the next load, or None: it stays down."""
        if self._recent and now - self._recent[-1] > self.window_seconds:
            self._in_a_row = 0
        self._recent.append(now)
        self._in_a_row += 1
        if len(self._recent) == self.max_deaths and now - self._recent[0] <= self.window_seconds:
            return None
        return float(min(self._first_seconds * 2 ** (self._in_a_row - 1), self._longest_seconds))
