"""A YAML file with the line of every key, and the files it includes merged in as LiteLLM merges them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from litellm_exllamav3.faults import Fault
from litellm_exllamav3.faults import Path as KeyPath


@dataclass(slots=True)
class YamlFile:
    """The content of one file, or of several merged."""

    path: Path
    content: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Path of a key -> its line, counted from 1."""
    faults: list[Fault] = field(default_factory=list)

    def line(self, path: KeyPath) -> int | None:
        """The line of the key, or of the nearest key above it that is in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def read_yaml(path: Path) -> YamlFile:
    """One file. Everything that keeps it from being read is in `faults`; then its content is empty."""
    file = YamlFile(path, {})
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except FileNotFoundError:
        file.faults.append(Fault((), f"there is no file {path}"))
    except (OSError, UnicodeDecodeError) as error:
        file.faults.append(Fault((), f"{path} cannot be read: {error}"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, where = (mark.line + 1, f", column {mark.column + 1}") if mark else (None, "")
        # Only the parser's own words: a snippet of the file could show a secret.
        file.faults.append(Fault((), f"{path.name} is not YAML{where}: {error.problem}", line))
    except yaml.YAMLError as error:
        file.faults.append(Fault((), f"{path.name} is not YAML: {type(error).__name__}"))
    else:
        if not isinstance(content, dict):
            file.faults.append(Fault((), f"{path.name} should be a mapping of sections, such as model_list"))
            return file
        file.content = content
        for key_path, line, repeated in _keys(root, ()):
            if repeated:
                file.faults.append(Fault(key_path, "stands here a second time; remove one of them", line))
            file.lines[key_path] = line
    return file


def read_with_includes(path: Path, section: str) -> tuple[YamlFile, Path]:
    """The file with its `include` entries merged in, and the path of the file that `section` comes from.

    As in LiteLLM's `config_includes.py`: lists are joined, everything else of an included file wins, entries are
    looked for beside the file that names them and then beside the first, and no file is read twice.
    """
    root = read_yaml(path)
    origin = path
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
            root.lines = {key: line for key, line in root.lines.items() if key[0] != section}
            root.lines |= {key: line for key, line in included.lines.items() if key[0] == section}
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
        paths.append(beside_it if beside_it.exists() or not beside_root.exists() else beside_root)
    return paths


def _keys(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int, bool]]:
    """(path, line, whether the key stands there already) of every key below the node."""
    if isinstance(node, yaml.MappingNode):
        known = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            yield (*path, key.value), key.start_mark.line + 1, key.value in known
            known.add(key.value)
            yield from _keys(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, index), value.start_mark.line + 1, False
            yield from _keys(value, (*path, index))
