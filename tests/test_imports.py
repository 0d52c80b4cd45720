"""What importing each half brings with it, seen from a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

USES_LITELLM = {"litellm_exllamav3.provider", "litellm_exllamav3.hooks"}
ENGINE_LIBRARIES = {"torch", "exllamav3", "transformers"}
STDLIB_ONLY = ["exllamav3_adapters.contract", "exllamav3_adapters.errors", "exllamav3_adapters.engine_settings"]


def modules(folder: str, package: str) -> list[str]:
    """Every module of a package, by its files."""
    source = ROOT / folder
    names = {".".join(path.relative_to(source).with_suffix("").parts) for path in (source / package).rglob("*.py")}
    return sorted(name.removesuffix(".__init__") for name in names)


def loaded_by(names: list[str], first: str = "") -> set[str]:
    """Top-level names in `sys.modules` after an interpreter imported these modules, less those it began with."""
    script = (
        "import importlib, json, sys\n"
        "before = set(sys.modules)\n"
        f"{first}\n"
        "for name in json.load(sys.stdin): importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_the_plugin_imports_neither_litellm_nor_an_engine() -> None:
    """Its modules but the two that LiteLLM loads: LiteLLM costs seconds and 200 MB."""
    names = [name for name in modules("plugin", "litellm_exllamav3") if name not in USES_LITELLM]
    assert "litellm_exllamav3.settings" in names
    assert loaded_by(names) & (ENGINE_LIBRARIES | {"litellm"}) == set()


def test_what_litellm_loads_imports_no_engine() -> None:
    names = sorted(USES_LITELLM & set(modules("plugin", "litellm_exllamav3")))
    assert loaded_by(names) & {"torch", "exllamav3"} == set()


def test_the_contract_is_stdlib_only() -> None:
    foreign = loaded_by(STDLIB_ONLY) - sys.stdlib_module_names - {"exllamav3_adapters"}
    assert foreign == set()


@pytest.mark.model
def test_the_engines_import_neither_litellm_nor_the_plugin() -> None:
    """On a machine without CUDA, exllamav3 can be imported only once its extension has a stand-in."""
    names = modules("adapters", "exllamav3_adapters")
    loaded = loaded_by(names, first="from exllamav3_adapters.cpu.install import install; install()")
    assert loaded >= ENGINE_LIBRARIES
    assert loaded & {"litellm", "litellm_exllamav3"} == set()


def test_finding_an_engine_by_name_imports_no_engine() -> None:
    assert loaded_by(["exllamav3_adapters", "exllamav3_adapters.registry"]) & ENGINE_LIBRARIES == set()
