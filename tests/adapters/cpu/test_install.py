"""What happens to exllamav3, to torch, and where it cannot be done."""

import subprocess
import sys
import types

import pytest

from exllamav3_adapters.cpu import install as installation
from exllamav3_adapters.cpu.extension import CpuExtension, MissingExtensionFunction
from exllamav3_adapters.errors import LoadFailed


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_a_function_it_lacks_says_so_only_when_called() -> None:
    missing = CpuExtension().exl3_gemm
    with pytest.raises(MissingExtensionFunction, match=r"'exl3_gemm'.*engine: cuda"):
        missing(1, 2)
    assert not hasattr(CpuExtension(), "__wrapped__")


def test_installing_twice_changes_nothing_more() -> None:
    from exllamav3.generator import cpu_cache, generator

    before = generator.torch, cpu_cache.CPUPageCache.__init__
    installation.install()
    assert (generator.torch, cpu_cache.CPUPageCache.__init__) == before


def test_torch_itself_stays_as_it_was() -> None:
    import torch
    from exllamav3.generator import generator

    assert generator.torch is not torch
    assert type(torch) is types.ModuleType
    assert torch.empty.__module__ is None or "exllamav3" not in torch.empty.__module__
    assert torch.cuda.Event is not generator.torch.cuda.Event
    assert generator.torch.empty((2,), pin_memory=True).shape == (2,)


def test_an_exllamav3_that_is_there_already_is_refused() -> None:
    code = """
import sys, types
sys.modules["exllamav3"] = types.ModuleType("exllamav3")
real = types.ModuleType("exllamav3.ext"); real.exllamav3_ext = object(); sys.modules["exllamav3.ext"] = real
from exllamav3_adapters.cpu.install import install
from exllamav3_adapters.errors import LoadFailed
try:
    install()
except LoadFailed as error:
    print(error.message)
"""
    assert "imported before the CPU engine" in run_python(code)


class CPUPageCache:
    def __init__(self) -> None:
        self.checked = "no assertion here"


def test_another_tier_than_the_known_one_is_refused() -> None:
    module = types.ModuleType("exllamav3.generator.cpu_cache")
    module.CPUPageCache = CPUPageCache  # type: ignore[attr-defined]
    with pytest.raises(LoadFailed, match=r"CPUPageCache.__init__.*0 times.*1\.6\.5"):
        installation._accept_host_pages(module)


def test_a_module_without_torch_is_refused() -> None:
    with pytest.raises(LoadFailed, match="no longer imports torch"):
        installation._hide_cuda(types.ModuleType("exllamav3.generator.job"))
