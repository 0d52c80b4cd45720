"""Whether this machine can run exllamav3 on its GPUs at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.machine import Gpu, Machine

OLDEST_CARD: Final = (7, 5)
"""Compute capability. exllamav3's kernels need Turing's tensor cores (`exllamav3_ext/arch.cuh` of 1.6.5: written for
8.0, with a way around each thing that 7.5 lacks, and none for older ones)."""
FULL_SPEED_CARD: Final = (8, 0)
_SUPPORTED_EXLLAMAV3: Final = "1.6.5"
_CPU_INSTEAD: Final = "use engine: cpu"
_INSTALL_TORCH: Final = "install the build of torch for your driver's CUDA, as https://pytorch.org/get-started says"


def machine_findings(machine: Machine) -> Iterator[Finding]:
    """Of torch, the driver, the cards and exllamav3's extension."""
    yield from _torch_findings(machine)
    for index, gpu in enumerate(machine.gpus):
        yield from _card_findings(index, gpu)
    yield from _exllamav3_findings(machine)


def _torch_findings(machine: Machine) -> Iterator[Finding]:
    if machine.torch is None:
        why = f" ({machine.cuda_error})" if machine.cuda_error else ""
        yield Finding(subject="torch", fault=f"cannot be imported{why}", remedy=_INSTALL_TORCH)
    elif machine.rocm is not None:
        yield Finding(
            subject="torch",
            fault=f"{machine.torch} is built for ROCm {machine.rocm}, and engine cuda serves on NVIDIA's cards alone",
            remedy=f"{_INSTALL_TORCH}; or {_CPU_INSTEAD}",
        )
    elif machine.cuda is None:
        yield Finding(
            subject="torch",
            fault=f"{machine.torch} is built for CPUs and cannot use a GPU",
            remedy=f"{_INSTALL_TORCH}; or {_CPU_INSTEAD}",
        )
    if machine.gpus or machine.rocm is not None:
        return
    if machine.driver is None:
        yield Finding(
            subject="GPU",
            fault="no NVIDIA driver is loaded on this machine, so there is no GPU to use",
            remedy="install NVIDIA's driver, or give the container its GPUs (docker run --gpus all); or "
            f"{_CPU_INSTEAD}",
        )
    elif machine.cuda is not None:
        yield Finding(
            subject="GPU",
            fault=f"torch finds none under NVIDIA's driver {machine.driver} "
            f"({machine.cuda_error or 'it does not say why'})",
            remedy=f"look whether nvidia-smi lists one and what CUDA_VISIBLE_DEVICES hides; torch is built for CUDA "
            f"{machine.cuda}, which an older driver does not run",
        )


def _card_findings(index: int, gpu: Gpu) -> Iterator[Finding]:
    named = f"cuda:{index} ({gpu.name})"
    capability = ".".join(map(str, gpu.compute_capability))
    if gpu.compute_capability < OLDEST_CARD:
        yield Finding(
            subject=named,
            fault=f"has compute capability {capability}, and exllamav3 needs 7.5 (Turing) at least",
            remedy="hide the card with CUDA_VISIBLE_DEVICES and use a newer one, or use engine: cpu",
        )
    elif gpu.compute_capability < FULL_SPEED_CARD:
        yield Finding(
            severity="warning",
            subject=named,
            fault=f"has compute capability {capability}, which exllamav3 supports by slower kernels",
            remedy="expect less than from a card of 8.0 (Ampere) or newer",
        )


def _exllamav3_findings(machine: Machine) -> Iterator[Finding]:
    if machine.exllamav3 is None:
        yield Finding(
            subject="exllamav3",
            fault="is not installed",
            remedy="install it with: pip install litellm-exllamav3[cuda]",
        )
        return
    if machine.exllamav3 != _SUPPORTED_EXLLAMAV3:
        yield Finding(
            severity="warning",
            subject="exllamav3",
            fault=f"{machine.exllamav3} is installed, and this release is made for {_SUPPORTED_EXLLAMAV3}",
            remedy=f"install exllamav3=={_SUPPORTED_EXLLAMAV3} if the load fails",
        )
    if machine.extension == "missing":
        yield _extension_finding(machine)


def _extension_finding(machine: Machine) -> Finding:
    wheel = (
        f"install the wheel of exllamav3 {machine.exllamav3} for your torch and Python from the project's releases "
        "(https://github.com/turboderp-org/exllamav3/releases), which needs no compiler"
    )
    tools = {"the CUDA toolkit (nvcc)": machine.nvcc, "a C++ compiler": machine.host_compiler}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        return Finding(
            subject="exllamav3",
            fault="its compiled extension is not installed (PyPI's package is source only), and "
            f"{' and '.join(missing)} to build it with cannot be found",
            remedy=f"{wheel}; or install {' and '.join(missing)}, and set CUDA_HOME if nvcc is not on the path",
        )
    if machine.cuda and machine.nvcc_cuda and _major(machine.cuda) != _major(machine.nvcc_cuda):
        return Finding(
            subject="exllamav3",
            fault=f"its extension is not installed, and {machine.nvcc} of CUDA {machine.nvcc_cuda} cannot build one "
            f"for a torch of CUDA {machine.cuda}",
            remedy=f"{wheel}; or install the toolkit of CUDA {machine.cuda}, and set CUDA_HOME to it",
        )
    return Finding(
        severity="warning",
        subject="exllamav3",
        fault=f"its extension is compiled at the first load, which takes minutes on {machine.cores} cores",
        remedy=f"wait for it once (it is kept in torch's extension cache), or {wheel}",
    )


def _major(version: str) -> str:
    return version.partition(".")[0]
