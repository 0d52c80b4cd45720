"""Generation parameters from what LiteLLM hands over, validated.

LiteLLM gives one flat mapping in which the client's own keys, OpenAI's parameters and the deployment's extra
`litellm_params` are mixed, and the client's win. So nothing here may reach an engine's settings, and every key must
be one of: a parameter (validated), one without meaning for this model (accepted), one whose effect is not there
(refused unless its value asks for nothing), a setting of the engine (ignored, and the config check warns of it), or
unknown. An unknown key is refused rather than ignored, since the answer would silently be sampled otherwise than asked;
LiteLLM does the same for parameters that a provider does not take. Its `drop_params` setting lets both pass here as it
does there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.answer_params import ANSWER_KEYS
from litellm_exllamav3.json_values import json_kind
from litellm_exllamav3.sampling_params import ALIASES, OTHER_SAMPLERS, SAMPLING, asks_no_sampler, read_sampling
from litellm_exllamav3.settings import (
    CaptureSection,
    DraftModelSection,
    LoraSection,
    MemorySection,
    ModelSection,
    ModelSettings,
)

READ_ELSEWHERE: Final = frozenset({"tools", "chat_template_kwargs"}) | ANSWER_KEYS
"""Keys of the chat itself (`chat_request.py`) and of how it is answered (`answer_params.py`)."""

WITHOUT_EFFECT: Final = frozenset(
    {
        "stream",
        "stream_options",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_summary",
        "extra_headers",
        "id_slot",
        "max_retries",
        "access_programs",
        "cache_control",
        "cache_prompt",
        "context_management",
        "diagnostics",
        "image",
        "inference_geo",
        "max_tool_calls",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""True or harmless for every request to a local model, or LiteLLM's own business."""


def _leaves_the_choice(value: Any) -> bool:
    return value in ("none", "auto")


def _is_falsy(value: Any) -> bool:
    return not value


def _never(value: Any) -> bool:
    return False


def _is_true(value: Any) -> bool:
    return value is True


NOT_SUPPORTED: Final[Mapping[str, Callable[[Any], bool]]] = {
    "add_generation_prompt": _is_true,
    "continue_final_message": _is_falsy,
    "documents": _is_falsy,
    "include_reasoning": _is_true,
    "skip_special_tokens": _is_true,
    "echo": _is_falsy,
    "suffix": _is_falsy,
    "functions": _is_falsy,
    "function_call": _leaves_the_choice,
    "modalities": lambda value: value == ["text"],
    "audio": _never,
    "moderation": _never,
    "web_search_options": _never,
    "container": _never,
    "mcp_servers": _is_falsy,
}
"""Parameter -> whether this value of it asks for nothing, and so may pass."""

_INSTEAD: Final = {"functions": "use tools", "function_call": "use tools and tool_choice"}

_SECTIONS = (ModelSection, MemorySection, DraftModelSection, LoraSection, CaptureSection)
ENGINE_KEYS: Final = frozenset(name for section in (ModelSettings, *_SECTIONS) for name in section.model_fields)
"""Settings of `exllamav3_settings`. LiteLLM lets a client's body carry them, and a deployment's `litellm_params`; they
have no effect in either place."""

PARAMETERS: Final = frozenset(SAMPLING) | frozenset(ALIASES) | READ_ELSEWHERE
_KNOWN: Final = sorted(PARAMETERS | WITHOUT_EFFECT | NOT_SUPPORTED.keys())


def flat_params(optional_params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without those that are null, a literal `extra_body` opened as LiteLLM opens it for OpenAI."""
    extra = optional_params.get("extra_body")
    if extra is not None and not isinstance(extra, Mapping):
        raise InvalidRequest(f"extra_body must be an object, not {json_kind(extra)}.", "extra_body")
    merged = {**(extra or {}), **optional_params}
    return {str(key): value for key, value in merged.items() if key != "extra_body" and value is not None}


def generation_params(
    params: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None, drop_unsupported: bool = False
) -> GenerationParams:
    """Validates the flat parameters of one request (see `flat_params`). `defaults`: of the model, for what the request
    does not name (`SamplingSection.defaults`).

    Raises `InvalidRequest`, which names the parameter, the value's type and what is allowed, never the value's text.
    With `drop_unsupported`, what is unknown or not supported is left out instead; a bad value never is.
    """
    if not drop_unsupported:
        _refuse_unsupported(params)
    return GenerationParams(**read_sampling(params, defaults))


def _refuse_unsupported(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        if name in PARAMETERS or name in WITHOUT_EFFECT or name in ENGINE_KEYS:
            continue
        if name in OTHER_SAMPLERS:
            if not asks_no_sampler(name, value):
                raise InvalidRequest(f"{name} is no sampler of exllamav3; remove it.", name)
            continue
        asks_for_nothing = NOT_SUPPORTED.get(name)
        if asks_for_nothing is None:
            raise InvalidRequest(_unknown(name), name)
        if not asks_for_nothing(value):
            what = f"{name} (other than its default)" if asks_for_nothing is not _never else name
            instead = _INSTEAD.get(name, "remove it")
            raise InvalidRequest(f"{what} is not supported by exllamav3 models; {instead}.", name)


def _unknown(name: str) -> str:
    shown = name if len(name) <= 64 else f"{name[:61]}..."
    nearest = difflib.get_close_matches(name, _KNOWN, n=1)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return (
        f"Unknown parameter {shown!r}.{hint} exllamav3 models do not ignore what they do not know; "
        "remove it, or set drop_params in the proxy's litellm_settings to have it dropped."
    )
