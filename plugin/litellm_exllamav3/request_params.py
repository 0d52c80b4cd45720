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
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.answer_params import ANSWER_KEYS
from litellm_exllamav3.json_values import json_kind
from litellm_exllamav3.settings import (
    CaptureSection,
    DraftModelSection,
    LoraSection,
    MemorySection,
    ModelSection,
    ModelSettings,
)

MAX_STOP_STRINGS: Final = 16
MAX_BANNED_STRINGS: Final = 64

_INT64: Final = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class _Range:
    """An allowed interval. `integer` refuses fractions; a whole number is welcome wherever a fraction is."""

    low: float = -math.inf
    high: float = math.inf
    integer: bool = False
    low_open: bool = False

    def __str__(self) -> str:
        kind = "an integer" if self.integer else "a number"
        if self.low <= -_INT64 and self.high >= _INT64 - 1:
            return f"{kind} of 64 bits" if self.integer else kind
        low = f"greater than {self.low:g}" if self.low_open else f"at least {self.low:g}"
        if self.high == math.inf:
            return f"{kind}, {low}"
        return f"{kind}, {low} and at most {self.high:g}"

    def holds(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        return above and value <= self.high


_RANGES: Final[Mapping[str, _Range]] = {
    "max_tokens": _Range(low=1, integer=True),
    "max_completion_tokens": _Range(low=1, integer=True),
    "min_tokens": _Range(low=0, integer=True),
    "temperature": _Range(low=0),
    "top_k": _Range(low=-1, integer=True),
    "top_p": _Range(low=0, high=1),
    "min_p": _Range(low=0, high=1),
    "repetition_penalty": _Range(low=0, low_open=True),
    "presence_penalty": _Range(low=-2, high=2),
    "frequency_penalty": _Range(low=-2, high=2),
    "seed": _Range(low=-_INT64, high=_INT64 - 1, integer=True),
}
_STRING_LISTS: Final[Mapping[str, int]] = {"stop": MAX_STOP_STRINGS, "banned_strings": MAX_BANNED_STRINGS}

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
        "max_retries",
        "access_programs",
        "cache_control",
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


NOT_SUPPORTED: Final[Mapping[str, Callable[[Any], bool]]] = {
    "logit_bias": _is_falsy,
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

PARAMETERS: Final = frozenset(_RANGES) | frozenset(_STRING_LISTS) | READ_ELSEWHERE
_KNOWN: Final = sorted(PARAMETERS | WITHOUT_EFFECT | NOT_SUPPORTED.keys())


def flat_params(optional_params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without those that are null, a literal `extra_body` opened as LiteLLM opens it for OpenAI."""
    extra = optional_params.get("extra_body")
    if extra is not None and not isinstance(extra, Mapping):
        raise InvalidRequest(f"extra_body must be an object, not {json_kind(extra)}.", "extra_body")
    merged = {**(extra or {}), **optional_params}
    return {str(key): value for key, value in merged.items() if key != "extra_body" and value is not None}


def generation_params(params: Mapping[str, Any], *, drop_unsupported: bool = False) -> GenerationParams:
    """Validates the flat parameters of one request (see `flat_params`).

    Raises `InvalidRequest`, which names the parameter, the value's type and what is allowed, never the value's text.
    With `drop_unsupported`, what is unknown or not supported is left out instead; a bad value never is.
    """
    if not drop_unsupported:
        _refuse_unsupported(params)
    numbers = {name: _number(name, params[name], allowed) for name, allowed in _RANGES.items() if name in params}
    strings = {name: _strings(name, params[name], most) for name, most in _STRING_LISTS.items() if name in params}

    max_tokens = numbers.pop("max_tokens", None)
    max_tokens = numbers.pop("max_completion_tokens", max_tokens)
    if max_tokens is not None and numbers.get("min_tokens", 0) > max_tokens:
        raise InvalidRequest("min_tokens must not be greater than max_tokens.", "min_tokens")
    numbers["top_k"] = max(0, numbers.get("top_k", 0))  # -1 is vLLM's and llama.cpp's way to say off
    if numbers.get("top_p") == 0:
        # The least set of tokens with any probability at all is the likeliest one.
        numbers.update(top_p=1.0, top_k=1)
    # Names and types are GenerationParams' own: a range that says integer made an int.
    checked: dict[str, Any] = {"max_tokens": max_tokens, **numbers, **strings}
    return GenerationParams(**checked)


def _refuse_unsupported(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        if name in PARAMETERS or name in WITHOUT_EFFECT or name in ENGINE_KEYS:
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


def _number(name: str, value: Any, allowed: _Range) -> float:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and (allowed.integer or not isinstance(value, float)):
        raise InvalidRequest(f"{name} must be {allowed}, not {json_kind(value)}.", name)
    if not math.isfinite(value) if isinstance(value, float) else abs(value) > _INT64:
        raise InvalidRequest(f"{name} must be {allowed}; it is not a finite number of 64 bits.", name)
    if not allowed.holds(value):
        raise InvalidRequest(f"{name} must be {allowed}; it is {value}.", name)
    return int(value) if allowed.integer else float(value)


def _strings(name: str, value: Any, most: int) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        raise InvalidRequest(f"{name} must be a string or a list of strings, not {json_kind(value)}.", name)
    if len(values) > most:
        raise InvalidRequest(f"{name} may hold at most {most} strings; it holds {len(values)}.", name)
    for item in values:
        if not isinstance(item, str):
            raise InvalidRequest(f"{name} must hold strings only; one of them is {json_kind(item)}.", name)
        if not item:
            raise InvalidRequest(f"{name} must not hold an empty string.", name)
    return tuple(values)
