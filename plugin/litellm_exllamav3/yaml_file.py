"""A YAML file with the line of every key, and the files it includes merged in as LiteLLM merges them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from litellm_exllamav3.faults import Fault
from litellm_exllamav3.faults import Path as KeyPath

MOST_REPEATED = 100_000
"""Values that the aliases of our section may repeat in all. A few lines of YAML can ask for billions."""
DEEPEST = 64
"""Levels of our section."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a key of the top level stands."""

    line: int
    node: yaml.Node


@dataclass(slots=True)
class YamlFile:
    """The content of one file, or of several merged. Aliases make it a graph, which may lead back to itself."""

    path: Path
    content: dict[str, Any]
    places: dict[str, _Place] = field(default_factory=dict, repr=False)
    faults: list[Fault] = field(default_factory=list)

    def line(self, path: KeyPath) -> int | None:
        """The line of the key, counted from 1, or of the nearest key above it that is in the file."""
        place = self.places.get(str(path[0])) if path else None
        for step in path[1:]:
            below = place and _below(place.node, step)
            if below is None:
                break
            place = below
        return place.line if place else None


class _Loader(yaml.SafeLoader):
    """PyYAML's, with a place for the values that its constructors fail on: dates, numbers and odd uses of tags."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # Python writes no more than 4,300 digits, and someone will want to see it.
            return value
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception:
            # Without the error's text, which may quote the value.
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise yaml.constructor.ConstructorError(None, None, f"not a valid {kind}", node.start_mark) from None


def read_yaml(path: Path) -> YamlFile:
    """One file. Everything that keeps it from being read is in `faults`; then its content is empty."""
    file = YamlFile(path, {})
    try:
        root, content, repeated = _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        file.faults.append(Fault((), f"there is no file {path}"))
    except (OSError, ValueError, OverflowError) as error:
        file.faults.append(Fault((), f"{path} cannot be read: {error}"))
    except RecursionError:
        file.faults.append(Fault((), f"{path.name} is nested too deep to be read"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, where = (mark.line + 1, f", column {mark.column + 1}") if mark else (None, "")
        # Only the parser's own words: a snippet of the file could show a secret.
        file.faults.append(Fault((), f"{path.name} is not YAML{where}: {error.problem}", line))
    except yaml.YAMLError as error:
        file.faults.append(Fault((), f"{path.name} is not YAML: {type(error).__name__}"))
    else:
        if not isinstance(content, dict) or not isinstance(root, yaml.MappingNode):
            file.faults.append(Fault((), f"{path.name} should be a mapping of sections, such as model_list"))
            return file
        file.content = content
        file.places = {key.value: _Place(_line(key), value) for key, value in _entries(root)}
        file.faults += repeated
    return file


def read_with_includes(path: Path, section: str) -> tuple[YamlFile, Path]:
    """The file with its `include` entries merged in, and the path of the file that `section` comes from.

    As in LiteLLM's `config_includes.py`: lists are joined, everything else of an included file wins, entries are
    looked for beside the file that names them and then beside the first, and no file is read twice.
    """
    root = read_yaml(path)
    origin = path
    if not root.content:
        return root, origin
    pending = _included(root, path)
    seen = {path.resolve()}
    while pending:
        included_path = pending.pop(0)
        if included_path.resolve() in seen:
            continue
        seen.add(included_path.resolve())
        included = read_yaml(included_path)
        root.faults += included.faults
        pending += _included(included, path)
        if section in included.content:
            origin = included_path
            root.places.pop(section, None)
            root.places |= {key: place for key, place in included.places.items() if key == section}
        for key, value in included.content.items():
            own = root.content.get(key)
            root.content[key] = [*own, *value] if isinstance(own, list) and isinstance(value, list) else value
    return root, origin


def _included(file: YamlFile, root: Path) -> list[Path]:
    entries = file.content.pop("include", [])
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        file.faults.append(Fault(("include",), "should be a list of file paths", file.line(("include",))))
        return []
    paths = []
    for entry in entries:
        beside_it, beside_root = file.path.parent / entry, root.parent / entry
        try:
            found = beside_it if beside_it.exists() or not beside_root.exists() else beside_root
            found.resolve()
            paths.append(found)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
            reason = error.strerror if isinstance(error, OSError) else error
            file.faults.append(Fault(("include",), f"has what can be no path: {reason}", file.line(("include",))))
    return paths


def _parsed(text: str) -> tuple[yaml.Node | None, Any, list[Fault]]:
    """The nodes of the one document, the value that they stand for, and the keys that stand there twice."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, None, []
        # Now: once the value has been made, a mapping's node also has the keys that were merged into it.
        repeated = list(_repeated_keys(root))
        return root, loader.construct_document(root), repeated
    finally:
        loader.dispose()


def _repeated_keys(root: yaml.Node) -> Iterator[Fault]:
    """Every node is visited once, however many aliases lead to it."""
    seen = {id(root)}
    pending: list[tuple[yaml.Node, KeyPath]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        known = set()
        for key, _ in _entries(node):
            if key.value in known:
                yield Fault((*path, key.value), "stands here a second time; remove one of them", _line(key))
            known.add(key.value)
        for step, value in _children(node):
            if id(value) not in seen:
                seen.add(id(value))
                pending.append((value, (*path, step)))


def _below(node: yaml.Node, step: str | int) -> _Place | None:
    """Where the key or position stands in the node."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return _Place(_line(node.value[step]), node.value[step])
    found = [_Place(_line(key), value) for key, value in _entries(node) if key.value == str(step)]
    return found[-1] if found else None


def _children(node: yaml.Node) -> Iterator[tuple[str | int, yaml.Node]]:
    if isinstance(node, yaml.SequenceNode):
        yield from enumerate(node.value)
    for key, value in _entries(node):
        yield key.value, value


def _entries(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys of a mapping and what stands behind them, without the mappings that are merged in."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            yield key, value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def tangle(value: Any, path: KeyPath) -> Fault | None:
    """Why the value cannot be walked along all its paths. None: it can."""
    repeated, seen = 0, set[int]()
    pending: list[tuple[Any, KeyPath, tuple[int, ...]]] = [(value, path, ())]
    while pending:
        entry, at, above = pending.pop()
        if not _is_container(entry):
            continue
        if id(entry) in above:
            return Fault(at, "is an alias of what it stands in; write out what is meant")
        if len(above) == DEEPEST:
            return Fault(at[: len(path) + 3], f"is nested more than {DEEPEST} levels deep")
        repeated += len(entry) + 1 if id(entry) in seen else 0
        if repeated > MOST_REPEATED:
            return Fault(path, f"has aliases that repeat more than {MOST_REPEATED} values; remove some")
        seen.add(id(entry))
        children = entry.items() if isinstance(entry, dict) else enumerate(entry)
        pending += [(child, (*at, step), (*above, id(entry))) for step, child in children if _is_container(child)]
    return None


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)
