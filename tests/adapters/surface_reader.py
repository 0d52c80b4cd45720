"""What the installed exllamav3 has of `engine_surface.SURFACE`, read from its signatures and its source.

`python surface_reader.py` prints it as JSON, with the version: `tests/next_release.py` compares two releases so.
"""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from exllamav3_adapters.cpu.install import install

install()

from exllamav3_adapters.exl3.engine_surface import KEYS, SURFACE


def find(place: str) -> Any:
    """A class, or a module where nothing follows the colon. None where it is gone."""
    module_name, _, class_name = place.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return None
    return getattr(module, class_name, None) if class_name else module


def parameters(place: str, function: str) -> list[str] | None:
    """Names, without those of `*args` and `**kwargs`. None: there is no such function."""
    found = getattr(find(place), function, None)
    if not callable(found):
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, each in inspect.signature(found).parameters.items() if each.kind not in kinds]


def attributes(place: str) -> set[str]:
    """Of an object of the class: what its class has, and what its methods set on it. Of a module: what it holds."""
    owner = find(place)
    if not inspect.isclass(owner):
        return set(dir(owner))
    return set(dir(owner)).union(*(_set_on_self(each) for each in owner.__mro__ if each.__module__ != "builtins"))


def strings(module_name: str) -> set[str]:
    module = find(f"{module_name}:")
    if module is None:
        return set()
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def changes() -> Iterator[str]:
    """A line for each thing that we rely on and that is not there, or not as it was."""
    for place, surface in SURFACE.items():
        if find(place) is None:
            yield f"{place} is gone"
            continue
        for function, names in surface.passes.items():
            yield from _missing(place, function, names)
        for function, expected in surface.exactly.items():
            if (found := parameters(place, function)) != list(expected):
                yield f"{place}.{function} takes {found}, where we rely on {list(expected)}"
        for name in sorted(set(surface.attributes) - attributes(place)):
            yield f"{place}.{name} is gone"
    for module_name, keys in KEYS.items():
        for key in sorted(set(keys) - strings(module_name)):
            yield f"{module_name} no longer has the key {key!r}"


def _missing(place: str, function: str, names: tuple[str, ...]) -> Iterator[str]:
    found = parameters(place, function)
    if found is None:
        yield f"{place}.{function} is gone"
        return
    for name in names:
        if name not in found:
            yield f"{place}.{function} has no argument {name}"


def _set_on_self(owner: type) -> set[str]:
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):
        return set()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    declared = {node.target.id for node in body.body if isinstance(node, ast.AnnAssign) and _is_name(node.target)}
    return declared | {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_name(node.value, "self")
    }


def _is_name(node: ast.AST, name: str | None = None) -> bool:
    return isinstance(node, ast.Name) and name in (None, node.id)


def _snapshot() -> dict[str, Any]:
    functions = [(place, function) for place, each in SURFACE.items() for function in (*each.passes, *each.exactly)]
    return {
        "version": importlib.import_module("exllamav3.version").__version__,
        "changes": list(changes()),
        "parameters": {f"{place}.{function}": parameters(place, function) for place, function in functions},
    }


if __name__ == "__main__":
    json.dump(_snapshot(), sys.stdout)
