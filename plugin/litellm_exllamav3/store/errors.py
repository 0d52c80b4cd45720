"""What can be wrong with the store."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError


class StoreUnavailable(Exception):
    """The store cannot be read or written now; the message says why. Capture goes on in memory."""


def reason(error: BaseException) -> str:
    """The driver's own words, fit for a log. SQLAlchemy would add the statement to them."""
    return str(error.orig) if isinstance(error, DBAPIError) else str(error)
