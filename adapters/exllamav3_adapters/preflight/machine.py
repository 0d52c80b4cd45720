"""What the checks must know of the machine. Plain values: a test describes any machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One that torch can use, by its index there."""

    name: str
    compute_capability: tuple[int, int]
    total: int
    """Bytes."""
    free: int
    """Bytes, after what a CUDA context and other processes take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """The file system of the disk tier's folder."""

    free: int
    """Bytes that this user may still write."""
    used_by_tier: int = 0
    """Bytes that files in the folder take already."""
    obstacle: str | None = None
    """Why nothing can be written there. None: it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The process that would load, and the machine it runs on."""

    torch: str | None
    """Version. None: not installed."""
    cuda: str | None = None
    """Version of CUDA that torch was built for. None: for none."""
    rocm: str | None = None
    """The same for ROCm."""
    driver: str | None = None
    """Version of NVIDIA's kernel driver. None: none is loaded."""
    gpus: tuple[Gpu, ...] = ()
    cuda_error: str | None = None
    """What torch says of why it finds no GPU."""
    exllamav3: str | None = None
    """Version. None: not installed."""
    extension: Literal["installed", "built", "missing"] = "missing"
    """exllamav3's compiled part: in the environment, compiled by an earlier import, or neither."""
    nvcc: str | None = None
    """Path of the CUDA compiler."""
    nvcc_cuda: str | None = None
    """Version of CUDA that it belongs to. None: it does not say."""
    host_compiler: str | None = None
    """Path of the C++ compiler."""
    cores: int = 1
    memory_total: int = 0
    """Bytes."""
    memory_free: int = 0
    """Bytes that can be had without swapping."""
    lockable: int | None = None
    """Bytes of memory that this process may lock (RLIMIT_MEMLOCK). None: no limit."""
    disk: Disk | None = None
    """None: there is no disk tier."""
