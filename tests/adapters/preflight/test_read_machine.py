"""The machine that runs the tests, and the process that checks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from preflight_run import settings

from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions
from exllamav3_adapters.preflight.machine import Disk
from exllamav3_adapters.preflight.read_machine import read_machine


def disk_of(folder: Path) -> Disk:
    found = read_machine(settings("/models/m", MemoryOptions(disk_cache_dir=str(folder)))).disk
    assert found is not None
    return found


def test_it_is_this_machine() -> None:
    found = read_machine(settings("/models/m"))
    assert found.torch == torch.__version__
    assert found.cuda == torch.version.cuda
    assert len(found.gpus) == torch.cuda.device_count()
    assert found.exllamav3 == "1.6.5"
    assert 0 < found.memory_free <= found.memory_total
    assert found.disk is None


def test_the_disk_is_that_of_the_nearest_folder_there_is(tmp_path: Path) -> None:
    found = disk_of(tmp_path / "not" / "yet")
    assert found.free > 0
    assert (found.used_by_tier, found.obstacle) == (0, None)


def test_what_the_tier_holds_already_is_counted(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a").write_bytes(bytes(1000))
    assert disk_of(tmp_path).used_by_tier == 1000


def test_a_file_in_the_way_is_an_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert disk_of(tmp_path / "file" / "tier").obstacle == f"{tmp_path / 'file'} is not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_an_obstacle(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "not writable" in (disk_of(tmp_path / "tier").obstacle or "")


def test_the_process_answers_with_reports_and_nothing_else(llama: Path) -> None:
    given = {"model_key": "m", "model": {"model_dir": str(llama), "cache_size": 8192, "max_seq_len": 8192}}
    done = subprocess.run(
        [sys.executable, "-m", "exllamav3_adapters.preflight"],
        input=json.dumps([given]).encode(),
        capture_output=True,
        timeout=100,
    )
    (report,) = json.loads(done.stdout)
    assert report["estimate"]["devices"][0]["uses"]["cache"] == 2**30
    if not torch.cuda.is_available():
        assert "error" in {finding["severity"] for finding in report["findings"]}


def test_settings_cross_to_the_process_whole() -> None:
    given = settings("/models/m", tensor_parallel_limits={"attn": 2}, gpu_split=(1.0, 2.0))
    assert msgspec.json.decode(msgspec.json.encode(given), type=EngineSettings) == given


def test_an_extension_that_an_earlier_import_compiled_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert read_machine(settings("/models/m")).extension == "missing"
    (tmp_path / "exllamav3_ext").mkdir()
    (tmp_path / "exllamav3_ext" / "exllamav3_ext.so").touch()
    assert read_machine(settings("/models/m")).extension == "built"
