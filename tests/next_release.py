"""`make test-next`: what of ours breaks with a newer exllamav3, before anybody installs it.

Fetches a release (the newest, or the one that is named) into a folder of its own, prints what has changed in what we
rely on, and runs the tests of it against that release. Needs a package index. Ends with 1 where something is gone or a
test fails: that is news, and fails nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
READER = TESTS / "adapters" / "surface_reader.py"
HELD_TO = (
    "adapters/exl3/test_engine_surface.py",
    "adapters/cuda",
    "adapters/cpu/test_install.py",
    "adapters/exl3/test_drafts.py",
    "adapters/exl3/test_hybrid_engine.py",
    "adapters/exl3/test_tiers.py",
)
"""Tests that call exllamav3's scheduler and loader."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="such as 1.6.6; the newest by default")
    version = parser.parse_args().version
    with tempfile.TemporaryDirectory(prefix="exllamav3-") as folder:
        if not _fetch(Path(folder), version):
            print("exllamav3 could not be fetched; is there a package index?", file=sys.stderr)
            return 1
        ours, theirs = _snapshot(None), _snapshot(folder)
        print(f"exllamav3 {theirs['version']}, held against {ours['version']}, which is installed:")
        if ours["version"] == theirs["version"]:
            print("  it is the same release; there is nothing to compare")
            return 0
        for line in theirs["changes"]:
            print(f"  {line}")
        for line in _new_arguments(ours["parameters"], theirs["parameters"]):
            print(f"  {line}")
        sys.stdout.flush()
        tests = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--tb=line",
                "-m",
                "not full",
                *(str(TESTS / path) for path in HELD_TO),
            ],
            env=_environment(folder),
            check=False,
        )
        return 1 if theirs["changes"] or tests.returncode else 0


def _fetch(folder: Path, version: str | None) -> bool:
    """Its Python alone: no extension is compiled, and what it depends on is what the installed one has."""
    package = "exllamav3" if version is None else f"exllamav3=={version}"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), package]
    return subprocess.run(command, env=os.environ | {"EXLLAMA_NOCOMPILE": "1"}, check=False).returncode == 0


def _snapshot(folder: str | None) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, str(READER)], env=_environment(folder), check=True, stdout=subprocess.PIPE, text=True
    )
    snapshot: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return snapshot


def _new_arguments(ours: dict[str, list[str] | None], theirs: dict[str, list[str] | None]) -> list[str]:
    added = {
        function: [name for name in theirs[function] or () if name not in (known or ())]
        for function, known in ours.items()
    }
    return [f"{function} has new arguments: {', '.join(names)}" for function, names in added.items() if names]


def _environment(folder: str | None) -> dict[str, str]:
    path = [folder, os.environ.get("PYTHONPATH")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(each for each in path if each)}


if __name__ == "__main__":
    sys.exit(main())
