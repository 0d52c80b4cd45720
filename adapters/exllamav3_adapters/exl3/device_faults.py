"""What an error of the device means for the engine that met it: one table, by how the error's text begins.

torch, Triton and exllamav3's own kernels raise different classes, and hand on the same words of the driver's. A text
must begin with them: errors that quote what a client sent are not the device's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch


class Reach(Enum):
    """How far a fault goes."""

    LAUNCH = "launch"
    """One launch was refused. The device is as it was."""
    MEMORY = "memory"
    """One allocation was refused. What had been allocated is intact."""
    DEVICE = "device"
    """Every later call fails as well, until the process ends: CUDA says so of its context."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    reach: Reach
    reason: str
    """The driver's or the allocator's own words, one line."""


FAULT_TABLE: tuple[tuple[Reach, re.Pattern[str]], ...] = tuple(
    (reach, re.compile(pattern))
    for reach, pattern in (
        (Reach.MEMORY, r"(CUDA|HIP) out of memory"),
        (Reach.MEMORY, r"(CUDA|HIP)( driver)? error: (CUDA_ERROR_OUT_OF_MEMORY|(hip)?[Oo]ut of memory)"),
        (Reach.MEMORY, r"(CUDA error|cuDNN error): CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED"),
        (Reach.MEMORY, r"Triton Error \[(CUDA|HIP)\]: out of memory"),
        (Reach.MEMORY, r"\[enforce fail at alloc_cpu\.cpp:\d+\].*can't allocate memory"),
        (Reach.LAUNCH, r"(CUDA|HIP) error: (invalid (configuration )?argument|invalid device function)"),
        (Reach.LAUNCH, r"(CUDA|HIP) error: (too many resources requested for launch|no kernel image is available)"),
        (Reach.LAUNCH, r"(CUDA error|cuDNN error): CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_(INVALID_VALUE|NOT_SUPPORTED)"),
        (Reach.LAUNCH, r"Triton Error \[(CUDA|HIP)\]: invalid (argument|device function)"),
        (Reach.DEVICE, r"(CUDA|HIP)( driver)? error: "),
        (Reach.DEVICE, r"cuDNN error: "),
        (Reach.DEVICE, r"Triton Error \[(CUDA|HIP)\]: "),
        (Reach.DEVICE, r"(NCCL|RCCL) error"),
    )
)
"""The first row that fits holds. What no row knows of the driver's errors is taken for the worst."""

_ERRORS = (RuntimeError, torch.OutOfMemoryError, torch.AcceleratorError)
_LOST_PROCESS = (ConnectionError, EOFError, TimeoutError)
_WANTED = re.compile(r"tried to allocate ([\d.]+ \w+)", re.IGNORECASE)
_MAX_REASON = 160


def device_fault(error: BaseException, *, tensor_parallel: bool = False) -> DeviceFault | None:
    """None: the error, and whatever caused it, is not the device's.

    With `tensor_parallel` the model's processes run in step, so one that failed alone, or does not answer, has left
    the others waiting: no less than the whole device is at fault.
    """
    for each in _chain(error):
        fault = _fault(each)
        if fault is None and tensor_parallel and isinstance(each, _LOST_PROCESS):
            return DeviceFault(Reach.DEVICE, f"a process of the tensor parallel model is lost ({type(each).__name__})")
        if fault is not None and fault.reach is Reach.MEMORY and tensor_parallel:
            return DeviceFault(Reach.DEVICE, fault.reason)
        if fault is not None:
            return fault
    return None


def place_of(error: BaseException) -> str:
    """Class and place of an error, for where its text must not go: it may quote a prompt."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(error).__name__
    code = traceback.tb_frame.f_code
    return f"{type(error).__name__} in {code.co_qualname}, {code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}"


def release_memory(error: BaseException) -> None:
    """Gives back what a failed step holds: the frames of its traceback keep their tensors, torch keeps the blocks."""
    for each in _chain(error):
        each.__traceback__ = None
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Sizes:
    """The settings that decide how much memory is wanted while an engine serves."""

    chunk_size: int
    max_batch_size: int
    cache_size: int

    @classmethod
    def of(cls, generator: Any, page_size: int) -> Sizes:
        return cls(generator.max_chunk_size, generator.max_batch_size, generator.pagetable.max_pages * page_size)

    def remedy(self) -> str:
        return (
            f"lower chunk_size (now {self.chunk_size}), max_batch_size (now {self.max_batch_size}) or cache_size (now "
            f"{self.cache_size})"
        )


def _fault(error: BaseException) -> DeviceFault | None:
    text = str(error)
    if isinstance(error, MemoryError):
        return DeviceFault(Reach.MEMORY, "Python is out of memory")
    if type(error) not in _ERRORS:
        return None
    for reach, pattern in FAULT_TABLE:
        if pattern.match(text):
            wanted = _WANTED.search(text) if reach is Reach.MEMORY else None
            return DeviceFault(
                reach, f"tried to allocate {wanted[1]}" if wanted else text.partition("\n")[0][:_MAX_REASON].strip()
            )
    if isinstance(error, torch.OutOfMemoryError):
        return DeviceFault(Reach.MEMORY, "the device is out of memory")
    if isinstance(error, torch.AcceleratorError):
        return DeviceFault(Reach.DEVICE, "the device failed")
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
