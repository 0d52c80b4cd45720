"""The card's checks over the CPU engine and tiny models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_PROJECT))

from gpu_check.check import Check  # noqa: E402
from gpu_check.parts.models import write_models  # noqa: E402


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """With its models written."""
    check = Check(engine="cpu", state=tmp_path_factory.mktemp("gpu-check"), seconds=100.0)
    write_models(check)
    return check
