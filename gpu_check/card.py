"""The card and the versions of a run, for the report and for the build."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.preflight.machine import Machine
from exllamav3_adapters.preflight.read_machine import read_machine

_PACKAGES = ("torch", "triton", "exllamav3", "safetensors", "tokenizers", "llguidance", "msgspec", "numpy")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """`machine` is what a load looks at as well."""

    machine: Machine

    @property
    def has_card(self) -> bool:
        return bool(self.machine.gpus)

    @property
    def architectures(self) -> str:
        """Of the first card alone, as `TORCH_CUDA_ARCH_LIST` names it."""
        major, minor = self.machine.gpus[0].compute_capability
        return f"{major}.{minor}"

    def why_no_card(self) -> str:
        if self.machine.torch is None:
            return f"torch cannot be imported ({self.machine.cuda_error or 'it is not installed'})"
        if self.machine.cuda is None:
            return f"torch {self.machine.torch} is built for CPUs"
        return f"torch finds no GPU ({self.machine.cuda_error or 'no driver is loaded'})"

    def missing(self) -> list[str]:
        """What the build and the checks need and is not where it is looked for, by what to do about it."""
        compiler = self.machine.host_compiler
        found = {
            "exllamav3 (make gpu-wheels gathers it)": self.machine.exllamav3 is None,
            "nvcc, the CUDA toolkit's compiler (set CUDA_HOME)": self.machine.nvcc is None,
            "a C++ compiler (apt install g++)": compiler is None,
            "ninja on the path (pip install ninja)": shutil.which("ninja") is None,
            "Python.h (apt install python3-dev)": not Path(sysconfig.get_path("include"), "Python.h").is_file(),
        }
        return [name for name, is_missing in found.items() if is_missing]

    def as_json(self) -> dict[str, Any]:
        machine = self.machine
        return {
            "device": [
                {
                    "name": gpu.name,
                    "compute_capability": ".".join(map(str, gpu.compute_capability)),
                    "memory_bytes": gpu.total,
                    "free_bytes": gpu.free,
                }
                for gpu in machine.gpus
            ],
            "driver": machine.driver or _driver(),
            "cuda": machine.cuda,
            "nvcc": machine.nvcc_cuda,
            "python": platform.python_version(),
            "system": platform.platform(),
            "cores": machine.cores,
            "memory_bytes": machine.memory_total,
            "packages": {name: _version(name) for name in _PACKAGES},
        }


def read_surroundings() -> Surroundings:
    """Takes seconds. Call it in a process that does not compute: it makes a CUDA context on every card."""
    settings = EngineSettings(model_key="check", model=ModelOptions(model_dir=""))
    return Surroundings(machine=read_machine(settings))


def _driver() -> str | None:
    """Where the kernel does not show it, as in some sandboxes."""
    command: Sequence[str] = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return said.split()[0] if said.split() else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
