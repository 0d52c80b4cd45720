"""Reads `exllamav3_settings` from LiteLLM's config file, and reports everything that is wrong with it at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from litellm_exllamav3.availability import unavailable
from litellm_exllamav3.config_paths import blocked_folders, missing_files
from litellm_exllamav3.environment import Resolved, environment, resolve, resolve_once
from litellm_exllamav3.faults import Fault, SettingsError
from litellm_exllamav3.faults import Path as KeyPath
from litellm_exllamav3.findings import explained
from litellm_exllamav3.gateway_checks import gateway_faults, gateway_warnings
from litellm_exllamav3.section import BASE_DIR
from litellm_exllamav3.settings import Settings
from litellm_exllamav3.yaml_file import YamlFile, read_with_includes, tangle

SECTION = "exllamav3_settings"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Config:
    """A valid config."""

    settings: Settings
    warnings: tuple[Fault, ...]
    variables: Mapping[KeyPath, str]
    """Path of a value that came from the environment -> the variable's name; such a value is never to be shown."""


def load_settings(path: str | Path, environ: Mapping[str, str]) -> Settings:
    """The settings in the file, checked against the rest of it; warnings go to the log.

    Paths in them are absolute. Nothing is created or loaded. Raises `SettingsError`, which lists every fault.
    """
    config = read_config(path, environ)
    for warning in config.warnings:
        logger.warning("%s: %s", path, warning)
    return config.settings


def read_config(path: str | Path, environ: Mapping[str, str]) -> Config:
    """As `load_settings`, with the warnings returned. Raises `SettingsError`."""
    file, origin = read_with_includes(Path(path), SECTION)
    if not file.content:
        raise SettingsError(str(path), tuple(file.faults) or (Fault((), "is empty"),))
    tangled = tangle(file.content.get(SECTION), (SECTION,))
    if tangled is not None:
        raise SettingsError(str(path), (Fault(tangled.path, tangled.message, file.line(tangled.path)),))
    known = environment(file.content, environ)
    resolved = resolve(file.content.pop(SECTION, None), known, (SECTION,))
    others = resolve_once(file.content, known)
    resolved.secrets |= others.secrets
    raw = _without_empty_options(resolved.value)
    faults = [*resolved.faults, *(fault for fault in file.faults if fault.path[:1] in ((), (SECTION,), ("include",)))]
    settings = None
    if isinstance(raw, dict):
        settings, found = _validated(raw, origin.resolve().parent, resolved)
        faults += found
    else:
        what = "is missing" if raw is None else "should be a mapping"
        faults.append(Fault((SECTION,), f"{what}; it needs models: {{KEY: {{engine: ..., model: ...}}}}"))
    keys = frozenset(_models(raw))
    faults += gateway_faults(others.value, keys) if keys else ()
    if settings is None or faults:
        in_order = sorted(_at_lines(faults, file, resolved), key=lambda fault: fault.line or 0)
        raise SettingsError(str(path), tuple(in_order))
    warnings = (*gateway_warnings(others.value, keys), *_settings_warnings(settings))
    return Config(settings, tuple(_at_lines(warnings, file, resolved)), resolved.variables)


def _validated(raw: dict[str, Any], base_dir: Path, resolved: Resolved) -> tuple[Settings | None, list[Fault]]:
    """The settings, or what is wrong with them."""
    models = _models(raw)
    first: dict[KeyPath, Fault] = {}
    for found in (
        _not_available(raw),
        missing_files(models, base_dir),
        blocked_folders(raw, models, base_dir),
        _no_text(raw),
    ):
        for fault in found:
            first.setdefault(fault.path, fault)
    faults = list(first.values())
    reported = {fault.path for fault in (*faults, *resolved.faults)}
    try:
        settings = Settings.model_validate(raw, context={BASE_DIR: base_dir})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            finding = explained(detail, show_value=not any("warm" in str(step) for step in detail["loc"]))
            fault = Fault((SECTION, *finding.path), finding.message)
            if fault.path not in reported:
                faults.append(fault)
        return None, faults
    return settings, faults


def _not_available(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for key, model in _models(raw).items():
        for path, message in unavailable(model):
            yield Fault((SECTION, "models", key, *path), message)


def _no_text(value: Any, path: KeyPath = (SECTION,)) -> Iterator[Fault]:
    """Texts with half a surrogate pair, which JSON and YAML can write but no tokenizer, file or terminal takes."""
    if isinstance(value, str) and not _is_text(value):
        yield Fault(path, "has half of a surrogate pair (\\ud800 to \\udfff), which is no character; remove it")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _no_text(entry, (*path, index))
    elif isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(key, str) and not _is_text(key):
                yield from _no_text(key, path)
            yield from _no_text(entry, (*path, key))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _settings_warnings(settings: Settings) -> Iterator[Fault]:
    for key, model in settings.models.items():
        for option, message in model.warnings():
            yield Fault((SECTION, "models", key, *option.split(".")), message)


def _models(raw: Any) -> Mapping[str, Mapping[str, Any]]:
    """What stands under `models`, as far as it has the form of a model; validation names the rest."""
    models = raw.get("models") if isinstance(raw, Mapping) else None
    if not isinstance(models, Mapping):
        return {}
    return {key: model for key, model in models.items() if isinstance(key, str) and isinstance(model, Mapping)}


def _without_empty_options(raw: Any) -> Any:
    """An option with nothing behind its colon is one that was left out, as in TabbyAPI's own config files."""
    if not isinstance(raw, dict) or not isinstance(raw.get("models"), dict):
        return raw
    return {**raw, "models": {key: _without_nothing(model, depth=2) for key, model in raw["models"].items()}}


def _without_nothing(value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or not depth:
        return value
    return {key: _without_nothing(entry, depth - 1) for key, entry in value.items() if entry is not None}


def _at_lines(faults: Iterable[Fault], file: YamlFile, resolved: Resolved) -> Iterator[Fault]:
    """The faults with their lines, and with no value from the environment in them."""
    for fault in faults:
        yield Fault(fault.path, resolved.hide(fault.message), fault.line or file.line(fault.path))
