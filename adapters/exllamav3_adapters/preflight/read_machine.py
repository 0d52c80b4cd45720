"""Looks at the machine. The only file here that asks torch, the environment and the kernel."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.machine import Disk, Gpu, Machine

_EXTENSION: Final = "exllamav3_ext"
_KIBIBYTE: Final = 1024
_CAP_IPC_LOCK: Final = 1 << 14
_DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")


def read_machine(settings: EngineSettings) -> Machine:
    """Takes seconds: it imports torch, and makes a CUDA context on every GPU, which this process keeps. Call it in a
    process that ends soon, or in the one that will load."""
    total, free = _memory()
    nvcc = _nvcc()
    torch = _torch()
    return Machine(
        **torch,
        driver=_driver(),
        exllamav3=_version("exllamav3"),
        extension=_extension(torch.get("cuda")),
        nvcc=nvcc,
        nvcc_cuda=None if nvcc is None else _nvcc_cuda(nvcc),
        host_compiler=shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++"),
        cores=os.cpu_count() or 1,
        memory_total=total,
        memory_free=free,
        lockable=_lockable(),
        disk=_disk(settings.memory.disk_cache_dir),
    )


def _torch() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:  # a shared library of CUDA that is missing raises OSError
        return {"torch": None, "cuda_error": _first_line(error)}
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "rocm": torch.version.hip}
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        found["gpus"] = tuple(_gpu(torch, index) for index in range(torch.cuda.device_count()))
    except Exception as error:  # AssertionError of a CPU build, RuntimeError of the driver
        found["cuda_error"] = _first_line(error)
    return found


def _gpu(torch: Any, index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return Gpu(
        name=properties.name, compute_capability=(properties.major, properties.minor), total=int(total), free=int(free)
    )


def _driver() -> str | None:
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _DRIVER_FILE.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extension(cuda: str | None) -> Any:
    """As exllamav3 looks for it (`exllamav3/ext.py`)."""
    spec = importlib.util.find_spec(_EXTENSION)
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    if spec is not None and spec.origin is not None and spec.origin.endswith(suffixes):
        return "installed"
    return "built" if (_build_folder(cuda) / _EXTENSION / f"{_EXTENSION}.so").is_file() else "missing"


def _build_folder(cuda: str | None) -> Path:
    """Where torch keeps what it compiled at an import (`torch.utils.cpp_extension._get_build_directory`). It compiles
    again all the same when sources or flags have changed."""
    if named := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(named)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    return caches / "torch_extensions" / f"{version}_{'cpu' if cuda is None else 'cu' + cuda.replace('.', '')}"


def _nvcc() -> str | None:
    """As exllamav3 and torch look for it (`exllamav3/util/cuda_flags.py`)."""
    if named := os.environ.get("PYTORCH_NVCC"):
        return named
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        path = Path(os.environ.get(variable) or "/nonexistent", "bin", "nvcc")
        if path.is_file():
            return str(path)
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.is_file() else None)


def _nvcc_cuda(nvcc: str) -> str | None:
    try:
        said = subprocess.run([*shlex.split(nvcc), "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release (\d+\.\d+)", said)
    return found[1] if found else None


def _memory() -> tuple[int, int]:
    """(total, free) bytes, within the limit of the control group if that is lower."""
    found = {
        line.split(":")[0]: int(line.split()[1]) * _KIBIBYTE for line in Path("/proc/meminfo").read_text().splitlines()
    }
    total, free = found["MemTotal"], found["MemAvailable"]
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no control group, or "max"
        return total, free
    return min(total, limit), min(free, max(0, limit - used))


def _lockable() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return None
    status = Path("/proc/self/status").read_text()
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return None if capabilities and int(capabilities[1], 16) & _CAP_IPC_LOCK else limit


def _disk(folder: str | None) -> Disk | None:
    if folder is None:
        return None
    path = Path(folder)
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    obstacle = None
    if not there.is_dir():
        obstacle = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        obstacle = f"{there} is not writable by this user"
    used = (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if there == path and path.is_dir() else 0
    )
    return Disk(free=shutil.disk_usage(there).free, used_by_tier=used, obstacle=obstacle)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
