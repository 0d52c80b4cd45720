"""What became of a part, as it is kept in the state folder and told in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

Status = Literal["done", "failed", "out of time", "not run"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is done is not run again. `error` says why one is not."""

    status: Status
    seconds: float = 0.0
    figures: dict[str, Any] = {}
    error: str = ""


class Outcomes:
    """Of one engine, a file a part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, part: str) -> Outcome | None:
        """None where nothing was kept, or not the whole of it."""
        try:
            return msgspec.json.decode(self.path(part).read_bytes(), type=Outcome)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, part: str, outcome: Outcome) -> None:
        """Whole or not at all."""
        partial = self._folder / f"{part}.partial"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))
        partial.rename(self.path(part))

    def path(self, part: str) -> Path:
        return self._folder / f"{part}.json"
