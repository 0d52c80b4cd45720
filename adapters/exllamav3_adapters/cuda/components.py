"""exllamav3's models of one folder: the text model, its vision tower, its draft head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exllamav3 import Config, Model

from exllamav3_adapters.errors import LoadFailed

_NAMES = {"vision": "vision component", "mtp": "head to draft with"}


def read_config(folder: Path, option: str) -> Any:
    """Of the architecture that `config.json` names. Raises LoadFailed, which names `option`."""
    try:
        return Config.from_directory(str(folder))
    except Exception as error:  # assertions, missing keys and files, each of the architecture's own
        raise LoadFailed(f"{option}: exllamav3 cannot read the model in {folder}: {first_line(error)}") from error


def make_component(config: Any, component: str, option: str) -> Any:
    """Not loaded yet. Raises LoadFailed, which names `option`, where the model has no such component."""
    if component not in config.model_classes:
        what = _NAMES.get(component, f"{component} component")
        raise LoadFailed(f"{option}: {config.architecture} in {config.directory} has no {what}; remove the option")
    try:
        return Model.from_config(config, component=component)
    except Exception as error:
        raise LoadFailed(f"{option}: exllamav3 cannot lay out {config.directory}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
