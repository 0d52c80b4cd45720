"""Gathers what a machine with a card and without a network needs beyond torch: `python -m gpu_check.wheels FOLDER`.

Wheels for Python 3.12 on x86-64 Linux, by the versions of `constraints.txt`; exllamav3, which is published as source,
as a wheel that compiles its extension where it is imported. LiteLLM is not among them: the engines do without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from gpu_check.environment import PROJECT

LIMIT_MEBIBYTES: Final = 64
ENGINE: Final = "exllamav3"
BINARY: Final = (
    # exllamav3's own needs, less those that torch brings.
    *("annotated-types", "llguidance", "marisa-trie", "ninja", "numpy", "pillow", "pydantic", "pydantic_core"),
    *("PyYAML", "safetensors", "tokenizers", "typing-inspection", "typing_extensions"),
    *("rich", "markdown-it-py", "mdurl", "Pygments"),
    # The adapters'.
    *("Jinja2", "MarkupSafe", "msgspec", "openai-harmony"),
    # The conformance suite's.
    *("pytest", "iniconfig", "packaging", "pluggy", "pytest-asyncio", "pytest-timeout"),
)
_PLATFORMS: Final = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)]
_TARGET: Final = [
    "--python-version",
    "3.12",
    "--implementation",
    "cp",
    "--abi",
    "cp312",
    "--abi",
    "abi3",
    "--abi",
    "none",
]
_MEBIBYTE: Final = 2**20


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    console = Console(width=None if sys.stdout.isatty() else 140)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    _run(download_command(folder, pinned_versions()), {})
    # Else it would compile here, for every card.
    _run(engine_command(folder, pinned_versions()), {"EXLLAMA_NOCOMPILE": "1"})
    wheels = sorted(folder.glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    size = sum(wheel.stat().st_size for wheel in wheels) / _MEBIBYTE
    for wheel in wheels:
        console.print(f"{wheel.stat().st_size / _MEBIBYTE:6.1f} MiB  {wheel.name}", highlight=False)
    console.print(f"{size:6.1f} MiB in {len(wheels)} wheels, {LIMIT_MEBIBYTES} at most", highlight=False)
    return 0 if size <= LIMIT_MEBIBYTES else 1


def download_command(folder: Path, versions: dict[str, str]) -> list[str]:
    """pip's, of the wheels alone: their needs are in the list already."""
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    wanted = [f"{name}=={versions[name.lower()]}" for name in BINARY]
    return ["download", "-q", "--no-deps", "--only-binary=:all:", *_TARGET, *platforms, "-d", str(folder), *wanted]


def engine_command(folder: Path, versions: dict[str, str]) -> list[str]:
    return ["wheel", "-q", "--no-deps", "-w", str(folder), f"{ENGINE}=={versions[ENGINE]}"]


def pinned_versions() -> dict[str, str]:
    """By lower-case name, of `constraints.txt`."""
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {name.strip().lower(): version.strip() for name, version in pairs}


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, env={**os.environ, **environment})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
