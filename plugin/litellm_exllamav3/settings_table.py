"""The effective settings of one model, an option a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from litellm_exllamav3.environment import PREFIX
from litellm_exllamav3.faults import Path
from litellm_exllamav3.settings import ModelSettings
from litellm_exllamav3.settings_reference import shown

_HIDDEN = frozenset({"warm_prefixes", "warm_prefix_token_ids", "warm_prompts"})
"""Options that hold prompts: only their number is shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One option, the value it has in the end, and where that comes from: `set` or `default`."""

    option: str
    value: str
    origin: str


def effective_settings(
    model: ModelSettings, path: Path, variables: Mapping[Path, str], credits_dir: str | None = None
) -> Iterator[Row]:
    """Rows of the model whose section is at `path`. A value from the environment is shown as its reference.

    `credits_dir` as in `ModelSettings.engine_settings`.
    """
    worked_out = {
        "model.cache_size": model.model.cache_tokens,
        "model.chunk_size": model.model.chunk_tokens(model.engine),
        "memory.aging_persist_dir": model.persist_dir(credits_dir),
    }
    for option, value, is_set in _options(model, ""):
        here = (*path, *option.split("."))
        variable = next((name for known, name in variables.items() if known[: len(here)] == here), None)
        if variable is not None:
            yield Row(option, PREFIX + variable, "set")
            continue
        value = worked_out.get(option, value)
        yield Row(option, _value(option, value), "set" if is_set else "default")


def _options(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any, bool]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _options(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value, name in section.model_fields_set


def _value(option: str, value: Any) -> str:
    if option.rpartition(".")[2] in _HIDDEN and value:
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return shown([getattr(entry, "name", entry) for entry in value])
    return shown(value)
