"""What a load refuses before anything is allocated."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from exl3_folder import write_exl3_llama
from preflight_run import gpu, machine, settings

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cpu.install import install
from exllamav3_adapters.cuda.engine import CudaEngine
from exllamav3_adapters.cuda.setup_check import check_memory
from exllamav3_adapters.errors import LoadFailed

install()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_exl3_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
async def test_a_machine_without_gpus_is_told_so_with_the_faults_of_the_folder(tmp_path: Path) -> None:
    stages: list[str] = []

    def note(progress: LoadProgress) -> None:
        stages.append(progress.stage)

    with pytest.raises(LoadFailed, match=r"model 'm': .*there is no folder .*/nowhere; correct the path"):
        await CudaEngine.load(settings(tmp_path / "nowhere"), note)
    assert stages == ["checking the setup"]


def test_a_model_that_cannot_fit_is_refused_with_what_to_set(llama: Path) -> None:
    given = settings(llama, cache_size=131072)
    with pytest.raises(LoadFailed, match=r"GPU memory: .* are missing .*; lower model\.cache_size from 131072 to \d+"):
        check_memory(given, machine(gpus=(gpu(free=10.0),)))


def test_a_model_that_fits_has_its_estimate_logged(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "exllamav3_adapters"):
        check_memory(settings(llama), machine())
    assert "m: cuda:0 (RTX 4090): needs " in caplog.text


def test_a_model_that_may_not_fit_is_loaded_with_a_warning(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_memory(settings(llama), machine(gpus=(gpu(free=5.0),)))
    assert "as far as forwards can be estimated" in caplog.text
