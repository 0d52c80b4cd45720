"""The configuration reference in Markdown, made from the settings' own descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from litellm_exllamav3.availability import ENGINES_TO_COME, OPTIONS
from litellm_exllamav3.memory_section import WarmPrompt
from litellm_exllamav3.settings import Lora, ModelSettings, Settings

_LEGEND = (
    "Options marked *later* are checked today and carried out by a later release: until then the load fails if one is "
    f"set. Engine{'' if len(ENGINES_TO_COME) == 1 else 's'} {', '.join(f'`{name}`' for name in ENGINES_TO_COME)} "
    "will come later as a whole. An option with nothing behind its colon counts as left out; every text may be "
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
        option = OPTIONS.get(prefix + name)
        later = " *later*" if option is not None and not option.engines else ""
        assert info.description is not None
        yield f"| `{name}`{later} | {_default(info)} | {info.description} |"


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
