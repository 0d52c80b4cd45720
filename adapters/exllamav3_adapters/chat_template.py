"""Finds a model's chat template and the special tokens that it writes, in the files that come with a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.template_sandbox import CompiledTemplate

MAX_FILE_BYTES = 64 * 2**20
"""tokenizer_config.json of a large vocabulary is a few MiB."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatTemplate:
    """A model's template, and the one that it brings for chats with tools, if that is another."""

    default: CompiledTemplate
    tool_use: CompiledTemplate | None = None
    origin: str
    """The file it was read from, for messages."""


def find_chat_template(model_dir: Path, chat_template: str | None = None) -> ChatTemplate:
    """The template to use, compiled. Raises `LoadFailed`.

    `chat_template` (a path, as in `ModelOptions`) goes before the model's own files, which are looked at in
    transformers' order: `chat_template.jinja`, `chat_template.json`, `tokenizer_config.json`.
    """
    if chat_template is not None:
        return _from_file(Path(chat_template).expanduser())
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        path = model_dir / name
        if path.is_file() and (name != "tokenizer_config.json" or _read_object(path).get("chat_template")):
            return _from_file(path)
    raise LoadFailed(
        f"no chat template in {model_dir}: there is no chat_template.jinja or chat_template.json, and "
        "tokenizer_config.json has no chat_template. Set model.chat_template to the path of a Jinja template."
    )


def read_special_tokens(model_dir: Path) -> dict[str, str]:
    """Special tokens by the names that templates use, such as `bos_token`. A name without a token is left out.

    `special_tokens_map.json` goes before `tokenizer_config.json`, as in transformers. Raises `LoadFailed`.
    """
    found: dict[str, str] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        path = model_dir / file
        entries = _read_object(path) if path.is_file() else {}
        for name in _SPECIAL_TOKENS:
            entry = entries.get(name)
            token = entry.get("content") if isinstance(entry, Mapping) else entry
            if isinstance(token, str):
                found[name] = token
    return found


def compile_chat_template(source: str, origin: str, tool_use: str | None = None) -> ChatTemplate:
    """Raises `LoadFailed`, which names `origin` and the line, where a source is no template."""
    return ChatTemplate(
        default=_compile(source, origin),
        tool_use=None if tool_use is None else _compile(tool_use, origin),
        origin=origin,
    )


def _from_file(path: Path) -> ChatTemplate:
    if path.suffix != ".json":
        tool_use = path.parent / "additional_chat_templates" / "tool_use.jinja"
        return compile_chat_template(_read(path), str(path), _read(tool_use) if tool_use.is_file() else None)
    entry = _read_object(path).get("chat_template")
    if isinstance(entry, str):
        return compile_chat_template(entry, str(path))
    named = _named_templates(entry)
    if not named:
        raise LoadFailed(f"{path}: chat_template must be a template, or a list of templates with names")
    default = named.get("default") or next(iter(named.values()))
    return compile_chat_template(default, str(path), named.get("tool_use"))


def _named_templates(entry: Any) -> dict[str, str]:
    if isinstance(entry, Mapping):
        entry = [{"name": name, "template": template} for name, template in entry.items()]
    if not isinstance(entry, list):
        return {}
    return {
        item["name"]: item["template"]
        for item in entry
        if isinstance(item, Mapping) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
    }


def _compile(source: str, origin: str) -> CompiledTemplate:
    try:
        return CompiledTemplate(source)
    except TemplateSyntaxError as error:
        raise LoadFailed(
            f"{origin}: the chat template has an error in line {error.lineno}: {error.message}. Correct it, or set "
            "model.chat_template to another template."
        ) from None
    except RecursionError:
        raise LoadFailed(f"{origin}: the chat template is nested too deeply") from None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise LoadFailed(f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB; it cannot be a chat template")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadFailed(f"cannot read the chat template {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LoadFailed(f"{path} is not UTF-8 text; save the chat template as UTF-8") from None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise LoadFailed(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise LoadFailed(f"{path} must hold a JSON object")
    return value
