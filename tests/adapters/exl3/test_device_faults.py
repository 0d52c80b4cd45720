"""What the device's errors mean for the engine that met them, by their texts: no card raised them here."""

from __future__ import annotations

import pytest
import torch

from exllamav3_adapters.exl3.device_faults import DeviceFault, Reach, device_fault, place_of

OUT_OF_MEMORY = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 101.56 MiB "
        "is free."
    ),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously"),
    RuntimeError("CUDA error: out of memory (cache.cu:90)\nException raised from gpu_assert"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
]
REFUSED_LAUNCH = [
    torch.AcceleratorError("CUDA error: invalid configuration argument"),
    RuntimeError("CUDA error: too many resources requested for launch (gemm.cu:12)"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`"),
]
BROKEN_DEVICE = [
    torch.AcceleratorError(
        "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress'"
    ),
    torch.AcceleratorError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: unspecified launch failure (attention.cu:77)"),
    RuntimeError("CUDA error: misaligned address"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    RuntimeError("CUDA driver error: unknown error"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("HIP error: an illegal memory access was encountered"),
    torch.AcceleratorError("an error that nobody knows"),
]
OTHERS = [
    ValueError("CUDA error: a schema may be called so"),
    RuntimeError("the grammar has no rule CUDA error: illegal"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    EOFError(),
    AssertionError("CUDA out of memory"),
]


def reach(error: Exception, *, tensor_parallel: bool = False) -> Reach | None:
    fault = device_fault(error, tensor_parallel=tensor_parallel)
    return fault and fault.reach


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_an_allocation_that_was_refused_leaves_the_device_intact(error: Exception) -> None:
    assert reach(error) is Reach.MEMORY


@pytest.mark.parametrize("error", REFUSED_LAUNCH, ids=str)
def test_so_does_a_launch_that_was_refused(error: Exception) -> None:
    assert reach(error) is Reach.LAUNCH


@pytest.mark.parametrize("error", BROKEN_DEVICE, ids=str)
def test_any_other_error_of_the_drivers_breaks_the_device(error: Exception) -> None:
    assert reach(error) is Reach.DEVICE


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_what_is_not_the_devices_is_not_taken_for_it(error: Exception) -> None:
    assert device_fault(error) is None


def test_the_reason_is_what_was_wanted_or_the_drivers_first_line() -> None:
    assert device_fault(OUT_OF_MEMORY[0]) == DeviceFault(Reach.MEMORY, "tried to allocate 512.00 MiB")
    assert device_fault(BROKEN_DEVICE[0]) == DeviceFault(
        Reach.DEVICE, "CUDA error: an illegal memory access was encountered"
    )


def test_a_fault_is_found_behind_the_error_that_it_led_to() -> None:
    error = KeyError("a page")
    error.__context__ = RuntimeError("CUDA error: unspecified launch failure")
    assert reach(error) is Reach.DEVICE


@pytest.mark.parametrize("error", [OUT_OF_MEMORY[0], EOFError(), BrokenPipeError(), TimeoutError("Timed out waiting")])
def test_one_process_of_a_tensor_parallel_model_that_fails_leaves_the_others_waiting(error: Exception) -> None:
    assert reach(error, tensor_parallel=True) is Reach.DEVICE


def test_the_place_of_an_error_says_nothing_of_its_text() -> None:
    with pytest.raises(ValueError, match="a prompt") as caught:
        raise ValueError("a prompt")
    assert place_of(caught.value).startswith("ValueError in test_the_place_of_an_error_says_nothing_of_its_text, test_")
    assert place_of(ValueError("a prompt")) == "ValueError"
