"""Engines by name. A class is imported on use, in the process that hosts it."""

from __future__ import annotations

import importlib
from typing import cast

from exllamav3_adapters.contract import Loader

ENGINES: dict[str, str] = {
    "cpu": "exllamav3_adapters.cpu.engine:CpuEngine",
    "cuda": "exllamav3_adapters.cuda.engine:CudaEngine",
    "fake": "exllamav3_adapters.fake:FakeEngine",
}


def engine_names() -> tuple[str, ...]:
    return tuple(sorted(ENGINES))


def find_engine(name: str) -> Loader:
    """The class registered under `name`, which must be one of `engine_names()`. Raises ImportError."""
    module, _, attribute = ENGINES[name].partition(":")
    return cast(Loader, getattr(importlib.import_module(module), attribute))
