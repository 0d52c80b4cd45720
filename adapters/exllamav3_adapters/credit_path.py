"""Where an engine keeps the credit of a model's pages, and how all of it goes where no engine can say whose it is."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote


def credit_path(folder: str | Path, model_key: str) -> Path:
    """The file in `memory.aging_persist_dir`, of a name that nothing else has: a model may be called `prefixes`, and
    the folder be that of the store, `prefixes.db`."""
    return Path(folder) / f"{quote(model_key, safe='')}.credit.db"


def damaged_path(path: Path) -> Path:
    """The name of a credit file that was moved aside."""
    return path.with_name(f"{path.name}.damaged")


def journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-journal")


def drop_credit(folder: str | Path, model_key: str) -> bool:
    """Removes a model's credit, files moved aside included. An engine that runs begins a new file. False: there was
    none. Blocks. Raises OSError."""
    path = credit_path(folder, model_key)
    found = [one for one in (damaged_path(path), path, journal_path(path)) if one.is_file()]
    for one in found:
        one.unlink(missing_ok=True)
    return bool(found)
