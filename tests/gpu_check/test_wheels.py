"""What is carried to a machine without a network is what the checks import there, beside torch."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_check.environment import PROJECT, part_environment
from gpu_check.wheels import BINARY, ENGINE, download_command, engine_command, pinned_versions

IMPORTS = """
import json, sys
before = set(sys.modules)
from exllamav3_adapters.cpu.install import install
install()
import importlib
for name in {names}: importlib.import_module(name)
print(json.dumps(sorted({{name.partition('.')[0] for name in set(sys.modules) - before}})))
"""
NAMES = [
    "exllamav3",
    "exllamav3.conversion.convert_model",
    "exllamav3_adapters.cuda.loading",
    "exllamav3_adapters.cuda.setup_check",
    "exllamav3_adapters.exl3.engine",
    "exllamav3_adapters.hosted",
    "exllamav3_adapters.host",
    "openai_harmony",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "gpu_check.__main__",
    *(f"gpu_check.parts.{path.stem}" for path in (PROJECT / "gpu_check" / "parts").glob("[a-z]*.py")),
    "gpu_check.part_process",
    "ninja",
]
TORCH = "torch"
# torch and rich look for them and do without.
OPTIONAL = {"tqdm", "attr", "attrs"}


def closure(distribution: str) -> set[str]:
    """It and all that it needs, normalised."""
    found: set[str] = set()
    waiting = [distribution]
    while waiting:
        name = normal(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [
            re.split(r"[ ;<>=!~\\[(]", need)[0]
            for need in needs
            if "extra ==" not in need and "platform_system" not in need
        ]
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.model
def test_all_that_the_checks_import_is_carried_or_comes_with_torch(tmp_path: Path) -> None:
    environment = part_environment("cpu", tmp_path)
    script = IMPORTS.format(names=json.dumps(NAMES))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    owners = importlib.metadata.packages_distributions()
    needed = {normal(owner) for name in imported - OPTIONAL for owner in owners.get(name, [])}
    carried = {normal(name) for name in (*BINARY, ENGINE)}
    assert needed - carried - closure(TORCH) - {"triton", "litellm-exllamav3"} == set()


def test_every_need_of_exllamav3_is_carried_or_comes_with_torch() -> None:
    carried = {normal(name) for name in (*BINARY, ENGINE)}
    # tokenizers asks for it to download models, and does not import it before.
    downloads = closure("huggingface_hub")
    assert closure(ENGINE) - carried - closure(TORCH) - downloads == set()


def test_the_wheels_are_of_the_versions_that_were_tried_together() -> None:
    versions = pinned_versions()
    command = download_command(Path("wheels"), versions)
    assert f"numpy=={versions['numpy']}" in command
    assert "--no-deps" in command
    assert command[command.index("--python-version") + 1] == "3.12"
    assert engine_command(Path("wheels"), versions)[-1] == f"exllamav3=={versions['exllamav3']}"
