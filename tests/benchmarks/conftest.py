"""The traces live beside the project; only where their folder is not there may a test that reads them be skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_PROJECT = Path(__file__).resolve().parents[2]
_TRACES = _PROJECT.parent / "shared" / "traces"

sys.path.insert(0, str(_PROJECT / "benchmarks"))


@pytest.fixture(scope="session")
def traces() -> Path:
    if not _TRACES.is_dir():
        pytest.skip(f"there is no folder {_TRACES}")
    return _TRACES
