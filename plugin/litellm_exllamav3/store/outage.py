"""How an outage of the store is told and waited for."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from litellm_exllamav3.store.errors import reason

logger = logging.getLogger("litellm_exllamav3.store")

_LONGEST_WAIT_SECONDS = 30.0
_SECONDS_BETWEEN_MESSAGES = 300.0


class Outage:
    """Whether the store can be written. Logged when it begins and when it ends, but not each time it flickers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told_at: float | None = None
        self._told = False
        self.reason: str | None = None
        """Why it cannot be written. None: it can."""
        self.wait_seconds = 0.0
        """Time until the next attempt."""

    def begins(self, error: BaseException) -> None:
        """One more attempt failed."""
        self.reason = reason(error)
        self.wait_seconds = min(_LONGEST_WAIT_SECONDS, max(1.0, 2 * self.wait_seconds))
        now = time.monotonic()
        if self._told_at is None or now - self._told_at >= _SECONDS_BETWEEN_MESSAGES:
            self._told_at, self._told = now, True
            logger.warning(
                "the store %s cannot be written (%s): captured prompts are kept in memory until it can be, "
                "and a restart would lose them; look at the folder's permissions and free space",
                self._path,
                self.reason,
            )

    def ends(self) -> None:
        """An attempt went well."""
        if self.reason is None:
            return
        self.reason, self.wait_seconds = None, 0.0
        if self._told:
            self._told = False
            logger.info("the store %s can be written again", self._path)
