"""A machine, settings and findings in few words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, LoraOptions, MemoryOptions, ModelOptions
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.machine import Gpu, Machine
from exllamav3_adapters.preflight.run import preflight

MIB = 2**20
GIB = 2**30


def gpu(free: float = 23.0, total: float = 24.0, capability: tuple[int, int] = (8, 9), name: str = "RTX 4090") -> Gpu:
    """Sizes in GiB."""
    return Gpu(name=name, compute_capability=capability, total=int(total * GIB), free=int(free * GIB))


GOOD = Machine(
    torch="2.11.0+cu130",
    cuda="13.0",
    driver="580.65.06",
    gpus=(gpu(),),
    exllamav3="1.6.5",
    extension="installed",
    cores=16,
    memory_total=64 * GIB,
    memory_free=48 * GIB,
)
"""On which a model of 8B loads without a finding."""


def machine(**changes: Any) -> Machine:
    return dataclasses.replace(GOOD, **changes)


def settings(
    model_dir: Path | str,
    memory: MemoryOptions | None = None,
    draft: DraftOptions | None = None,
    loras: tuple[LoraOptions, ...] = (),
    **model: Any,
) -> EngineSettings:
    """With a cache of 8192 tokens unless said otherwise."""
    model.setdefault("cache_size", 8192)
    model.setdefault("max_seq_len", 8192)
    return EngineSettings(
        model_key="m",
        model=ModelOptions(model_dir=str(model_dir), **model),
        memory=memory or MemoryOptions(),
        draft=draft or DraftOptions(),
        loras=loras,
    )


def findings(given: EngineSettings, on: Machine = GOOD) -> list[Finding]:
    return list(preflight(given, on).findings)


def only(found: list[Finding]) -> Finding:
    """The one finding there must be."""
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]
