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
    option is left out."""
    resolved = Resolved(None)
    resolved.value = _replace(value, environ, path, resolved)
    return resolved


def environment(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """What the process will have: LiteLLM adds the config's own `environment_variables` before it loads plugins."""
    added = config.get("environment_variables")
    if not isinstance(added, Mapping):
        return dict(environ)
    values = {str(key): resolve(value, environ).value for key, value in added.items()}
    return {**environ, **{key: str(value) for key, value in values.items() if value is not None}}


def _replace(value: Any, environ: Mapping[str, str], path: Path, resolved: Resolved) -> Any:
    if isinstance(value, str) and value.startswith(PREFIX):
        name = value.removeprefix(PREFIX)
        if name not in environ:
            resolved.faults.append(Fault(path, f"environment variable {name} is not set"))
            return None
        resolved.variables[path] = name
        resolved.secrets[environ[name]] = name
        return environ[name]
    if isinstance(value, dict):
        return {key: _replace(entry, environ, (*path, key), resolved) for key, entry in value.items()}
    if isinstance(value, list):
        return [_replace(entry, environ, (*path, index), resolved) for index, entry in enumerate(value)]
    return value
