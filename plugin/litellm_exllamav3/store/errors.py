"""What can be wrong with the store."""

from __future__ import annotations


class StoreUnavailable(Exception):
    """The store cannot be read or written now; the message says why. Capture goes on in memory."""
