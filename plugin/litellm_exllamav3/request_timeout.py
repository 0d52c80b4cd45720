"""The limit that a request brings with it."""

from __future__ import annotations

import math
from typing import Any

import httpx

from exllamav3_adapters.errors import InvalidRequest


def timeout_seconds(timeout: Any) -> float | None:
    """LiteLLM hands over its limit but does not enforce it. For an `httpx.Timeout` the time to read counts.

    Raises `InvalidRequest` for what can be no limit.
    """
    limit = timeout.read if isinstance(timeout, httpx.Timeout) else timeout
    if limit is None:
        return None
    try:
        seconds = float(limit)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds) or seconds <= 0:
        raise InvalidRequest("timeout must be a positive number of seconds.", "timeout")
    return seconds
