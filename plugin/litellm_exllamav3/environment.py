"""`os.environ/NAME` in the settings, resolved as LiteLLM resolves it in its own sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from litellm_exllamav3.faults import Fault, Path

PREFIX = "os.environ/"

_SHORTEST_SECRET = 4
"""Characters. Shorter values keep no secret, and occur in any text."""


@dataclass(slots=True)
class Resolved:
    """A section with its references replaced."""

    value: Any
    variables: dict[Path, str] = field(default_factory=dict)
    """Path of a value that came from the environment -> the variable's name. Such a value is never shown."""
    faults: list[Fault] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Value -> the variable it came from."""

    def hide(self, text: str) -> str:
        """The text with every value from the environment replaced by its reference."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, PREFIX + self.secrets[secret])
        return text


def resolve(value: Any, environ: Mapping[str, str], path: Path = ()) -> Resolved:
    """Replaces every text that begins with `os.environ/`, at any depth. A missing variable is a fault, and its
    option is left out.

    What several aliases lead to is visited once for each, so that `variables` has all its paths: the value must be
    none of those that `yaml_file.tangle` names.
    """
    resolved = Resolved(None)
    resolved.value = _replace(value, environ, path, resolved, None)
    return resolved


def resolve_once(value: Any, environ: Mapping[str, str], path: Path = ()) -> Resolved:
    """As `resolve`, each list and mapping visited once, however many aliases lead to it, and copied as it is shared.

    For any value, even one that leads back to itself.
    """
    resolved = Resolved(None)
    resolved.value = _replace(value, environ, path, resolved, {})
    return resolved


def environment(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """What the process will have: LiteLLM adds the config's own `environment_variables` before it loads plugins."""
    added = config.get("environment_variables")
    if not isinstance(added, Mapping):
        return dict(environ)
    scalars = {str(key): value for key, value in added.items() if not isinstance(value, dict | list | tuple | set)}
    values = {key: resolve(value, environ).value for key, value in scalars.items()}
    return {**environ, **{key: str(value) for key, value in values.items() if value is not None}}


def _replace(
    value: Any, environ: Mapping[str, str], path: Path, resolved: Resolved, copies: dict[int, Any] | None
) -> Any:
    """`copies`: by the original's id, what was visited already. None: every path is walked."""
    if isinstance(value, str) and value.startswith(PREFIX):
        name = value.removeprefix(PREFIX)
        if name not in environ:
            resolved.faults.append(Fault(path, f"environment variable {name} is not set"))
            return None
        resolved.variables[path] = name
        resolved.secrets[environ[name]] = name
        return environ[name]
    if not isinstance(value, dict | list):
        return value
    if copies is not None and id(value) in copies:
        return copies[id(value)]
    copy: Any = {} if isinstance(value, dict) else [None] * len(value)
    if copies is not None:
        copies[id(value)] = copy
    # A loop rather than a comprehension: it takes no more of the stack than PyYAML did.
    for step, entry in value.items() if isinstance(value, dict) else enumerate(value):
        copy[step] = _replace(entry, environ, (*path, step), resolved, copies)
    return copy
