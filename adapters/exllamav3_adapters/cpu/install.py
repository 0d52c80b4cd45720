"""Makes exllamav3 importable and usable without a GPU.

exllamav3 compiles or loads its extension while it is imported, so the stand-in has to be in `sys.modules` first.
What is left are a few lines of exllamav3's scheduler that assume CUDA; they are changed in exllamav3's own modules,
and never in torch. Each change is guarded: on another release than the one it was written for it raises.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
import threading
import types
from typing import Any

import torch

from exllamav3_adapters.cpu.extension import CpuExtension
from exllamav3_adapters.errors import LoadFailed

_EXTENSION_MODULE = "exllamav3.ext"
_TIER_MODULE = "exllamav3.generator.cpu_cache"
# They allocate or lock pinned memory, or wait for a CUDA stream.
_PROXIED_MODULES = (
    "exllamav3.generator.generator",
    "exllamav3.generator.job",
    "exllamav3.util.pinned_arena",
    _TIER_MODULE,
)
_CUDA_ASSERT = 'assert t.device.type == "cuda"'
_CPU_ASSERT = 'assert t.device.type in ("cuda", "cpu")'


class _Event:
    """A CUDA event that has always happened: copies between host tensors are done when they return."""

    def record(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...


class _Cuda:
    """`torch.cuda` as the scheduler sees it."""

    Event = _Event

    def init(self) -> None: ...

    def synchronize(self, device: object = None) -> None: ...

    def current_stream(self, device: object = None) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class TorchWithoutCuda:
    """The name `torch` inside exllamav3's scheduler: torch, without pinned memory and without streams."""

    cuda = _Cuda()

    def empty(self, *size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.empty(*size, **options)

    def zeros(self, *size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.zeros(*size, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


_installing = threading.Lock()


def install() -> None:
    """Prepares this process for exllamav3 on the CPU; does nothing the second time. Any thread.

    Call it before anything imports exllamav3. Raises `LoadFailed` where exllamav3 is there already with its real
    extension, where it is not installed, or where it is not the release that these changes were made for.
    """
    with _installing:
        _place_extension()
        _patch_scheduler()


def _place_extension() -> None:
    present = sys.modules.get(_EXTENSION_MODULE)
    if present is None:
        if "exllamav3" in sys.modules:
            raise LoadFailed(_already_imported("its extension is not ours"))
        module = types.ModuleType(_EXTENSION_MODULE)
        module.exllamav3_ext = CpuExtension()  # type: ignore[attr-defined]
        sys.modules[_EXTENSION_MODULE] = module
    elif not isinstance(getattr(present, "exllamav3_ext", None), CpuExtension):
        raise LoadFailed(_already_imported(f"{_EXTENSION_MODULE} is {getattr(present, '__file__', present)}"))


def _patch_scheduler() -> None:
    try:
        modules = [importlib.import_module(name) for name in _PROXIED_MODULES]
    except ImportError as error:
        raise LoadFailed(
            f"exllamav3 could not be imported ({error}); install it with: pip install litellm-exllamav3[cpu]"
        ) from error
    for module in modules:
        _hide_cuda(module)
    _accept_host_pages(sys.modules[_TIER_MODULE])


def _already_imported(reason: str) -> str:
    return (
        f"exllamav3 was imported before the CPU engine could prepare it ({reason}). Load the CPU engine in a process "
        "of its own, and before anything else there imports exllamav3."
    )


def _hide_cuda(module: types.ModuleType) -> None:
    """Replaces the name `torch` in one of exllamav3's modules."""
    known = getattr(module, "torch", None)
    if isinstance(known, TorchWithoutCuda):
        return
    if known is not torch:
        raise LoadFailed(_changed(f"{module.__name__} no longer imports torch under this name"))
    module.torch = TorchWithoutCuda()  # type: ignore[attr-defined]


def _accept_host_pages(module: types.ModuleType) -> None:
    """Lifts the assertion that the pages of the system-memory tier come from a GPU."""
    tier = module.CPUPageCache
    if getattr(tier.__init__, "accepts_host_pages", False):
        return
    source = textwrap.dedent(inspect.getsource(tier.__init__))
    found = source.count(_CUDA_ASSERT)
    if found != 1:
        raise LoadFailed(_changed(f"CPUPageCache.__init__ holds {_CUDA_ASSERT!r} {found} times and not once"))
    code = compile(source.replace(_CUDA_ASSERT, _CPU_ASSERT), f"{module.__file__}", "exec")
    namespace: dict[str, Any] = {}
    exec(code, module.__dict__, namespace)
    namespace["__init__"].accepts_host_pages = True
    tier.__init__ = namespace["__init__"]


def _changed(what: str) -> str:
    version = getattr(sys.modules.get("exllamav3.version"), "__version__", "of unknown version")
    return f"exllamav3 {version} is not what the CPU engine expects: {what}. Install exllamav3 1.6.5."
