"""Every part that a card is checked by, run as it will be there: only the engine and the sizes are others."""

from __future__ import annotations

import pytest
from gpu_check.check import Check
from gpu_check.part_process import run_part
from gpu_check.part_table import PARTS, Part
from gpu_check.parts.conformance import run_suite
from gpu_check.parts.extension import NAME, extensions_folder

pytestmark = pytest.mark.model
ON_A_CPU = [part for part in PARTS if not part.needs_card and part.name != "conformance"]


@pytest.mark.parametrize("part", ON_A_CPU, ids=lambda part: part.name)
def test_a_part_runs_on_the_cpu_engine(check: Check, part: Part) -> None:
    outcome = run_part(part, check)
    assert outcome.error == ""
    assert outcome.status == "done"
    assert outcome.figures


def test_the_conformance_suite_is_counted(check: Check) -> None:
    """Over the fake engine: over the CPU's it runs with the other tests."""
    figures = run_suite(check, "fake and empty_prompt")
    assert figures == {"passed": 4, "skipped": 0}


def test_a_suite_of_which_nothing_passed_is_a_fault(check: Check) -> None:
    part = Part(name="suite", function="gpu_check.parts.conformance:check_conformance", seconds=60.0)
    outcome = run_part(part, Check(engine="no-such-engine", state=check.state, seconds=60.0))  # type: ignore[arg-type]
    assert outcome.status == "failed"
    assert "0 passed" in outcome.error


def test_a_build_that_fails_says_why_and_waits_for_no_other(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's torch is built for CPUs, so that the build cannot succeed."""
    lock = extensions_folder(check.state) / NAME / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(extensions_folder(check.state)))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    outcome = run_part(next(part for part in PARTS if part.name == "extension"), check)
    assert outcome.status == "failed"
    assert outcome.error.startswith("the extension does not build: ")
    assert not lock.exists()
