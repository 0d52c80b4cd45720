"""Sizes as people read them."""

from __future__ import annotations

from typing import Final

MEBIBYTE: Final = 2**20
GIBIBYTE: Final = 2**30


def shown_bytes(size: int) -> str:
    """In MiB below one GiB, and in GiB above."""
    if abs(size) < GIBIBYTE:
        return f"{size / MEBIBYTE:.0f} MiB" if abs(size) >= MEBIBYTE or not size else f"{size / MEBIBYTE:.2f} MiB"
    return f"{size / GIBIBYTE:.2f} GiB"
