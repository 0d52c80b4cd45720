"""Whether the installed exllamav3 has all that we rely on, and whether what we rely on is all declared."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from exllamav3 import architecture
from surface_reader import changes, find, parameters

import exllamav3_adapters
from exllamav3_adapters import cpu, cuda, exl3
from exllamav3_adapters.exl3.engine_surface import SURFACE, VISION_COMPONENTS

PACKAGES = (exl3, cpu, cuda)


def engine_modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def imported_names() -> Iterator[tuple[str, str]]:
    """(module of exllamav3's, name) of every import in the adapters."""
    for file in Path(next(iter(exllamav3_adapters.__path__))).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "exllamav3":
                yield from ((node.module or "", alias.name) for alias in node.names)


def overridden() -> Iterator[tuple[type, str, type]]:
    """(exllamav3's class, method, our class that has another) of every override."""
    for module in engine_modules():
        for name, ours in inspect.getmembers(module, inspect.isclass):
            if ours.__module__ != module.__name__:
                continue
            assert name
            theirs = [base for base in ours.__mro__ if base.__module__.startswith("exllamav3.")]
            for method, function in vars(ours).items():
                owner = next((base for base in theirs if method in vars(base)), None)
                if owner is not None and inspect.isfunction(function) and method != "__init__":
                    yield owner, method, ours


def test_the_installed_exllamav3_has_all_that_we_rely_on() -> None:
    assert list(changes()) == []


def test_every_name_that_we_import_is_declared() -> None:
    declared = {id(find(place)) for place in SURFACE}
    for module_name, name in imported_names():
        place = SURFACE.get(f"{module_name}:")
        in_module = place is not None and name in (*place.attributes, *place.passes, *place.exactly)
        found = getattr(importlib.import_module(module_name), name)
        assert in_module or id(found) in declared, f"{module_name}.{name}"


def test_every_method_that_ours_replaces_is_declared_with_its_parameters() -> None:
    for theirs, method, ours in overridden():
        place = f"{theirs.__module__}:{theirs.__qualname__}"
        assert method in SURFACE[place].exactly, f"{ours.__name__}.{method}"


def test_every_vision_component_is_declared() -> None:
    declared = {find(f"exllamav3.architecture.{place}") for place in VISION_COMPONENTS}
    for module_info in pkgutil.iter_modules(architecture.__path__, f"{architecture.__name__}."):
        for name, component in inspect.getmembers(importlib.import_module(module_info.name), inspect.isclass):
            assert not hasattr(component, "get_image_embeddings") or component in declared, name


@pytest.mark.parametrize("place", [place for place in SURFACE if SURFACE[place].exactly])
def test_what_takes_the_place_of_a_method_takes_what_it_took(place: str) -> None:
    for theirs, method, ours in overridden():
        if f"{theirs.__module__}:{theirs.__qualname__}" == place:
            bound = inspect.signature(getattr(ours, method))
            kinds = {each.kind for each in bound.parameters.values()}
            passes_all = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds
            assert passes_all or list(bound.parameters) == parameters(place, method), f"{ours.__name__}.{method}"
