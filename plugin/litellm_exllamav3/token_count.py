"""A request that only wants to know how many tokens its prompt has.

It takes the way of the request itself, so that LiteLLM translates it as it would that one, and the provider counts
instead of answering. That it is such a request stands in a context variable, which no client can write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class TokenCount:
    tokens: int | None = None
    """None: the provider was not reached."""


_COUNT: ContextVar[TokenCount | None] = ContextVar("litellm_exllamav3_token_count", default=None)


@contextmanager
def counting() -> Iterator[TokenCount]:
    """Every call to the provider in this context counts."""
    count = TokenCount()
    token = _COUNT.set(count)
    try:
        yield count
    finally:
        _COUNT.reset(token)


def wanted_count() -> TokenCount | None:
    """Where the provider leaves its count. None: it is to answer."""
    return _COUNT.get()
