"""The suite that holds every engine to the contract, over the engine to check: in process, and hosted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from gpu_check.check import Check, Figures, PartFailed

MODEL_VARIABLE: Final = "EXLLAMAV3_CONFORMANCE_MODEL"
"""Names the model folder to `tests/adapters/conftest.py`."""
_SUITE: Final = Path(__file__).parents[2] / "tests" / "adapters" / "test_conformance.py"
_LONGEST: Final = 600


def check_conformance(check: Check) -> Figures:
    """Every test of it by name that did not pass."""
    return run_suite(check, check.engine)


def run_suite(check: Check, selection: str) -> Figures:
    """`selection` as pytest's `-k`."""
    result = check.state / "conformance.xml"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", str(_SUITE), "-q", "-k", selection, f"--junitxml={result}"]
    command += ["-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout"]
    # No other plugins that this Python happens to have.
    environment = {**os.environ, MODEL_VARIABLE: str(check.model("llama")), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    check.say("pytest")
    log = check.state / "conformance.log"
    with log.open("w") as output:
        done = subprocess.run(
            command, env=environment, cwd=_SUITE.parents[2], stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if not result.exists():
        lines = log.read_text(errors="replace").strip().splitlines()
        raise PartFailed(f"pytest ended with {done.returncode}: " + "\n".join(lines[-20:]))
    return _figures(result)


def _figures(result: Path) -> Figures:
    cases = list(ElementTree.parse(result).iter("testcase"))
    failed = {case.get("name", ""): _reason(case) for case in cases if _reason(case)}
    skipped = [case.get("name", "") for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(failed) - len(skipped)
    if failed or not passed:
        listed = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise PartFailed(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped. {listed}")
    return {"passed": passed, "skipped": len(skipped)}


def _reason(case: ElementTree.Element) -> str:
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            return (found.get("message") or kind)[:_LONGEST]
    return ""
