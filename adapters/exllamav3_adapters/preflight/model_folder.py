"""A model's folder as it lies on the disk, read as far as it can be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exllamav3_adapters.preflight.safetensors_header import BrokenFile, Tensor, read_header


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """What is in it. Nothing is raised for what is not: the checks tell."""

    path: Path
    exists: bool
    files: frozenset[str] = frozenset()
    """Names, without those in folders below."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Of `config.json`; empty where there is none that can be read."""
    config_fault: str | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Of all whole safetensors files."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Name of a safetensors file that is not whole -> why."""
    indexed: frozenset[str] = frozenset()
    """Files that the index of the shards names."""

    @property
    def quant_method(self) -> str | None:
        """How the config says that the weights are quantised, in small letters."""
        section = self.config.get("quantization_config")
        method = section.get("quant_method") if isinstance(section, Mapping) else None
        return str(method).lower() if method else None

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())


def read_model_folder(path: Path) -> ModelFolder:
    """Reads headers and small files alone. Blocks."""
    try:
        files = frozenset(entry.name for entry in path.iterdir() if entry.is_file())
    except OSError:
        return ModelFolder(path=path, exists=False)
    config, config_fault = _read_object(path / "config.json") if "config.json" in files else ({}, None)
    tensors: dict[str, Tensor] = {}
    broken: dict[str, str] = {}
    for name in sorted(files):
        if not name.endswith(".safetensors"):
            continue
        try:
            tensors |= read_header(path / name)
        except BrokenFile as error:
            broken[name] = str(error)
        except OSError as error:
            broken[name] = f"it cannot be read ({error.strerror})"
    return ModelFolder(
        path=path,
        exists=True,
        files=files,
        config=config,
        config_fault=config_fault,
        tensors=tensors,
        broken=broken,
        indexed=_indexed(path / "model.safetensors.index.json"),
    )


def _indexed(path: Path) -> frozenset[str]:
    index, _ = _read_object(path) if path.is_file() else ({}, None)
    shards = index.get("weight_map")
    return frozenset(map(str, shards.values())) if isinstance(shards, Mapping) else frozenset()


def _read_object(path: Path) -> tuple[dict[str, Any], str | None]:
    """With what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, f"cannot be read ({error.strerror})"
    except ValueError as error:
        return {}, f"is not valid JSON ({error})"
    return (value, None) if isinstance(value, dict) else ({}, "does not hold a JSON object")
