"""Whether the files and folders that the settings name are there, or could be made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from litellm_exllamav3.faults import Fault
from litellm_exllamav3.faults import Path as KeyPath
from litellm_exllamav3.section import absolute
from litellm_exllamav3.settings import DEMO_MODEL, Settings


def missing_files(models: Mapping[str, Mapping[str, Any]], base_dir: Path) -> Iterator[Fault]:
    """Model folders and chat templates that are not there."""
    for key, model in models.items():
        section = model.get("model")
        if not isinstance(section, Mapping):
            continue
        path = ("exllamav3_settings", "models", key, "model")
        folder, name, template = section.get("model_dir"), section.get("model_name"), section.get("chat_template")
        if isinstance(folder, str) and folder != DEMO_MODEL and model.get("engine") != "fake":
            weights = f"{folder}/{name}" if folder and isinstance(name, str) else folder
            yield from _missing((*path, "model_dir"), "folder", weights, base_dir)
        if isinstance(template, str):
            yield from _missing((*path, "chat_template"), "file", template, base_dir)


def _missing(path: KeyPath, kind: Literal["file", "folder"], name: str, base_dir: Path) -> Iterator[Fault]:
    """What can be no path at all is left to validation."""
    try:
        place = absolute(name, base_dir)
    except ValueError:
        return
    try:
        found = place.is_dir() if kind == "folder" else place.is_file()
    except OSError:
        found = False
    if not found:
        yield Fault(path, f"there is no {kind} {place}")


def blocked_folders(raw: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]], base_dir: Path) -> Iterator[Fault]:
    """Folders that could not be made, because a file is in the way."""
    default = Settings.model_fields["state_dir"].default
    folders: dict[KeyPath, Any] = {("exllamav3_settings", "state_dir"): raw.get("state_dir", default)}
    for key, model in models.items():
        memory = model.get("memory")
        if isinstance(memory, Mapping):
            for option in ("disk_cache_dir", "aging_persist_dir"):
                folders["exllamav3_settings", "models", key, "memory", option] = memory.get(option)
    for path, name in folders.items():
        blocking = _file_in_the_way(name, base_dir) if isinstance(name, str) else None
        if blocking is not None:
            yield Fault(path, f"cannot be a folder, since {blocking} is a file")


def _file_in_the_way(name: str, base_dir: Path) -> Path | None:
    try:
        place = absolute(name, base_dir)
        there = next((folder for folder in (place, *place.parents) if folder.exists()), None)
    except (OSError, ValueError):
        return None
    return there if there is not None and not there.is_dir() else None
