"""What the parts' processes find set: where they build, and for which card."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from gpu_check.check import EngineName
from gpu_check.parts.extension import extensions_folder
from gpu_check.toolkit import toolkit_environment

PROJECT: Final = Path(__file__).parents[1]
_COMPILER_GIBIBYTES: Final = 4
"""Of memory for one of nvcc's processes."""


def part_environment(
    engine: EngineName, state: Path, architectures: str | None = None, gibibytes: float = 8.0, nvcc: str | None = None
) -> dict[str, str]:
    """`gibibytes` of the machine's memory are free; `architectures` is None where nothing is built."""
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    # The project and the adapters, installed or not, before what is there under these names.
    here = [str(PROJECT), str(PROJECT / "adapters")]
    found["PYTHONPATH"] = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    # torch calls ninja by its name, which lies beside the interpreter, or beside the packages of `pip --target`.
    beside = [
        str(Path(entry, "bin").resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry
    ]
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), *beside, os.environ.get("PATH", "")])
    if engine == "cpu":
        return {**found, "OMP_WAIT_POLICY": "PASSIVE"}
    jobs = max(1, min(os.cpu_count() or 1, int(gibibytes / _COMPILER_GIBIBYTES)))
    found |= {
        "TORCH_EXTENSIONS_DIR": str(extensions_folder(state)),
        "TRITON_CACHE_DIR": str(state / "triton"),
        "MAX_JOBS": str(jobs),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    found |= toolkit_environment(nvcc, state)
    if architectures is not None:
        found["TORCH_CUDA_ARCH_LIST"] = architectures
    return found
