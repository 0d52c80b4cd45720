"""The configuration reference in Markdown, made from the settings' own descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from exllamav3_adapters.registry import engine_names
from litellm_exllamav3.availability import OPTIONS
from litellm_exllamav3.memory_section import WarmPrompt
from litellm_exllamav3.settings import Lora, ModelSettings, Settings

_LEGEND = (
    "Options with engines in brackets work on those engines alone; on another one the load fails if the option is set "
    "to anything but its default. An option with nothing behind its colon counts as left out; every text may be "
    "`os.environ/NAME`."
)


def settings_reference() -> str:
    """Markdown: a table for every section."""
    sections: list[tuple[str, str, type[BaseModel]]] = [
        ("exllamav3_settings", "", Settings),
        ("exllamav3_settings.models.KEY", "", ModelSettings),
    ]
    for name, info in ModelSettings.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            sections.append((f"exllamav3_settings.models.KEY.{name}", f"{name}.", info.annotation))
            sections += [
                (f"An entry of {name}.{option}", "", entry)
                for option, entry in (("warm_prompts", WarmPrompt), ("loras", Lora))
                if option in info.annotation.model_fields
            ]
    parts = [_LEGEND]
    for title, prefix, section in sections:
        heading = f"`{title}`" if title.startswith("exllamav3") else f"{title.rpartition(' ')[0]} `{title.split()[-1]}`"
        parts += [f"#### {heading}", "\n".join(_table(prefix, section))]
    return "\n\n".join(parts) + "\n"


def _table(prefix: str, section: type[BaseModel]) -> Iterator[str]:
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for name, info in section.model_fields.items():
        assert info.description is not None
        yield f"| `{name}`{_engines(prefix + name)} | {_default(info)} | {info.description} |"


def _engines(name: str) -> str:
    """In brackets, unless the option is no engine's business or works on all of them."""
    option = OPTIONS.get(name)
    if option is None or set(option.engines) == set(engine_names()):
        return ""
    # The fake is for tests, and a reader would only wonder.
    named = [engine for engine in option.engines if engine != "fake"]
    return "" if set(named) == set(engine_names()) - {"fake"} else f" ({', '.join(named)})"


def _default(info: FieldInfo) -> str:
    value = info.default
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{shown(value)}`".replace("|", "\\|")


def shown(value: Any) -> str:
    """A value as it would stand in YAML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(entry) for entry in value)}]"
    return str(value)
