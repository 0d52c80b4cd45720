"""The checks of models of engine `cuda` that ask the machine and the models' files, in a process of their own: they
import torch, which the plugin never does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from exllamav3_adapters.engine_settings import EngineSettings
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


def _failed(models: Iterable[str], what: str, remedy: str) -> dict[str, Report]:
    finding = Finding(subject="preflight", fault=f"the check of the machine {what}", remedy=remedy)
    return {key: Report(findings=(finding,)) for key in models}
