"""pydantic's findings in the words of this project: what is wrong, and what to do about it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from litellm_exllamav3.faults import Fault, Path
from litellm_exllamav3.settings import ModelSettings, Settings

_OTHER_NAMES = {
    "prompt_template": "use chat_template, the path of a Jinja file",
    "backend": "remove it; engine says what runs the model",
    "use_dummy_models": "remove it; aliases stand in LiteLLM's model_list",
    "dummy_model_names": "remove it; aliases stand in LiteLLM's model_list",
    "inline_model_loading": "remove it; models are loaded by this file alone",
    "output_chunking": "remove it; space for the answer is always taken as it grows",
    "rope_scale": "remove it; no engine has it",
    "rope_alpha": "remove it; no engine has it",
    "cuda_malloc_async": "remove it; set PYTORCH_CUDA_ALLOC_CONF in the environment instead",
}
"""TabbyAPI's options that have no namesake here, and what to do with them when its sections are pasted over."""

_PLAINER = {
    "a valid tuple": "a list",
    "a valid dictionary": "a mapping",
    "a valid dictionary or instance of": "a mapping of the options of",
    "a valid string": "a text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
}

_LONGEST_SHOWN = 40
"""Characters of a wrong value that are shown; what is longer is more likely a prompt."""


def explained(detail: ErrorDetails, *, show_value: bool) -> Fault:
    """The finding as a fault, its path below `exllamav3_settings`. The wrong value is shown only if it may be."""
    path = tuple(step for step in detail["loc"] if step != "[key]")
    if detail["type"] == "extra_forbidden":
        return Fault(path, _unknown(path))
    if detail["type"] == "missing":
        return Fault(path, "is missing")
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    for theirs in sorted(_PLAINER, key=len, reverse=True):
        message = message.replace(theirs, _PLAINER[theirs])
    value = detail["input"]
    if show_value and message.startswith("should ") and isinstance(value, str | int | float | None):
        shown = str(value).lower() if isinstance(value, bool) or value is None else repr(value)
        if len(shown) <= _LONGEST_SHOWN:
            message = f"{message}, not {'nothing' if value is None else shown}"
    return Fault(path, message)


def _unknown(path: Path) -> str:
    name = str(path[-1])
    if name in _OTHER_NAMES:
        return f"is not an option here; {_OTHER_NAMES[name]}"
    for section, options in _sections().items():
        if name in options and len(path) > 1 and section != path[-2]:
            return f"unknown option; it belongs in the section {section}"
    known = _options_at(path[:-1])
    near = get_close_matches(name, known, n=1, cutoff=0.0)
    return f"unknown option; the nearest valid one is {near[0]}" if near else "unknown option; remove it"


def _sections() -> dict[str, list[str]]:
    """Options by the section of a model that they belong to."""
    return {
        section: list(info.annotation.model_fields)
        for section, info in ModelSettings.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }


def _options_at(path: Path) -> list[str]:
    """Names of the options that are valid in the mapping at the path."""
    model: type[BaseModel] = Settings
    for step in path:
        info = model.model_fields.get(str(step))
        if info is not None:
            model = next(_models_in(info.annotation), model)
    return list(model.model_fields)


def _models_in(annotation: Any) -> Any:
    """The pydantic models in a type such as `dict[str, Model]`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            yield candidate
