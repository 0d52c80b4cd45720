"""Whether LiteLLM's own sections of the config lead to the models of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from litellm_exllamav3.faults import Fault, Path
from litellm_exllamav3.settings import ModelSettings

PROVIDER = "exllamav3"
HANDLER = "litellm_exllamav3.provider.handler"
CAPTURE_HOOK = "litellm_exllamav3.hooks.capture"

_OUR_OPTIONS = frozenset(ModelSettings.model_fields) | frozenset(
    name
    for section in ("model", "memory", "draft_model", "capture")
    for name in ModelSettings.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
)
_LITELLMS_OWN = frozenset({"model", "timeout", "stream_timeout", "max_retries"})


def gateway_faults(config: Mapping[str, Any], keys: frozenset[str]) -> Iterator[Fault]:
    """What keeps LiteLLM from serving our models. `keys` are those of `exllamav3_settings.models`.

    A file that leads to none of them needs no handler: a library may register it in code.
    """
    litellm_settings = _mapping(config, "litellm_settings")
    handlers = [
        entry.get("custom_handler")
        for entry in _mappings(litellm_settings, "custom_provider_map")
        if entry.get("provider") == PROVIDER
    ]
    path: Path = ("litellm_settings", "custom_provider_map")
    if not handlers and any(_routes(config)):
        yield Fault(path, f"has no entry for {PROVIDER}; add {{provider: {PROVIDER}, custom_handler: {HANDLER}}}")
    elif any(handler != HANDLER for handler in handlers):
        yield Fault(path, f"the custom_handler of {PROVIDER} should be {HANDLER}")
    for index, _, key in _routes(config):
        if not any(fnmatchcase(known, key) for known in keys):
            near = get_close_matches(key, sorted(keys), n=1, cutoff=0)
            hint = f"; did you mean {PROVIDER}/{near[0]}?" if near else ""
            yield Fault(
                ("model_list", index, "litellm_params", "model"),
                f"there is no {key!r} in exllamav3_settings.models{hint}",
            )


def gateway_warnings(config: Mapping[str, Any], keys: frozenset[str]) -> Iterator[Fault]:
    """What works, but is probably not meant."""
    routed = [key for _, _, key in _routes(config)]
    for key in sorted(keys):
        if not any(fnmatchcase(key, pattern) for pattern in routed):
            yield Fault(
                ("exllamav3_settings", "models", key),
                f"no entry of model_list leads to it; add one with litellm_params: {{model: {PROVIDER}/{key}}}",
            )
    callbacks = _mapping(config, "litellm_settings").get("callbacks")
    if CAPTURE_HOOK not in (callbacks if isinstance(callbacks, list) else [callbacks]):
        yield Fault(("litellm_settings", "callbacks"), f"{CAPTURE_HOOK} is missing, so no prompt head is captured")
    if _mapping(config, "general_settings").get("cancel_on_disconnect") is not True:
        yield Fault(
            ("general_settings", "cancel_on_disconnect"),
            "is not true, so the engine goes on with requests whose client has gone",
        )
    router = _mapping(config, "router_settings")
    if router.get("fallbacks") and router.get("fallback_on_unsupported_params") is not False:
        yield Fault(
            ("router_settings", "fallback_on_unsupported_params"),
            "is not false, so a request that a model refuses with a 400, for a misspelt parameter say, goes to the "
            "fallback with its whole prompt",
        )
    for index, params, _ in _routes(config):
        for name in sorted(_OUR_OPTIONS & params.keys() - _LITELLMS_OWN):
            yield Fault(
                ("model_list", index, "litellm_params", name),
                "is ignored here, since a client could override it; move it to exllamav3_settings",
            )


def _routes(config: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    """(position in model_list, litellm_params, model key or pattern) of every entry that leads to this provider."""
    for index, entry in enumerate(_mappings(config, "model_list")):
        params = _mapping(entry, "litellm_params")
        model, provider = params.get("model"), params.get("custom_llm_provider")
        if isinstance(model, str) and model.startswith(f"{PROVIDER}/"):
            yield index, params, model.removeprefix(f"{PROVIDER}/")
        elif isinstance(model, str) and provider == PROVIDER:
            yield index, params, model


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _mappings(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list under the key; what is no mapping in it counts as an empty one, so that positions stay true."""
    value = parent.get(key)
    return [entry if isinstance(entry, Mapping) else {} for entry in value] if isinstance(value, list) else []
