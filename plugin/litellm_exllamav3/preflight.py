"""The checks of models of engine `cuda` that ask the machine and the models' files, in a process of their own: they
import torch, which the plugin never does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.byte_size import shown_bytes
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.report import Report

CHECKED_ENGINE: Final = "cuda"
_LONGEST_SECONDS: Final = 300
"""Headers of a model of hundreds of files, on a network's disk."""


def run_preflight(models: Mapping[str, EngineSettings]) -> dict[str, Report]:
    """Reports by the models' keys. Blocks for seconds. A check that itself fails is a finding."""
    if not models:
        return {}
    command = [sys.executable, "-P", "-m", "exllamav3_adapters.preflight"]
    given = msgspec.json.encode(list(models.values()))
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return _failed(models, f"took more than {_LONGEST_SECONDS} s", "look whether the disk of model_dir answers")
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        return _failed(models, f"failed: {lines[-1]}", f"run {' '.join(command[1:])} by hand for all of it")
    return dict(zip(models, msgspec.json.decode(done.stdout, type=list[Report]), strict=True))


def not_together(reports: Mapping[str, Report]) -> str | None:
    """What to say where each model fits the GPUs, and all of them at once do not. None: they do."""
    found = [report.estimate for report in reports.values() if report.estimate is not None]
    gpus = [[device for device in estimate.devices if device.kind == "gpu"] for estimate in found]
    usable = max((sum(device.usable for device in devices) for devices in gpus), default=0)
    needed = sum(device.needed for devices in gpus for device in devices)
    if len(found) < 2 or not usable or needed <= usable or not all(estimate.fits for estimate in found):
        return None
    return (
        f"{len(found)} models need {shown_bytes(needed)} of the GPUs' memory together, and {shown_bytes(usable)} are "
        "usable; give each its GPUs with model.gpu_split, lower their cache_size, or leave one out"
    )


def _failed(models: Iterable[str], what: str, remedy: str) -> dict[str, Report]:
    finding = Finding(subject="preflight", fault=f"the check of the machine {what}", remedy=remedy)
    return {key: Report(findings=(finding,)) for key in models}
