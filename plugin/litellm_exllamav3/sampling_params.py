"""The parameters that a request samples with: their names and ranges, stated once.

`request_params.py` reads a request's by this table, and `sampling_section.py` a model's defaults. An engine's own
names and types are `GenerationParams`'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.parameter_kinds import INT64, Flag, Kind, Number, Texts, TokenBias, TokenIds

_COUNT: Final = Number(low=1, integer=True)
_COUNT_OR_NONE: Final = Number(low=0, integer=True)
_LOOKBACK: Final = Number(low=-1, integer=True)
_FRACTION: Final = Number(low=0, high=1)
_MOST_TOKEN_IDS: Final = 65_536

SAMPLING: Final[Mapping[str, Kind]] = {
    "max_tokens": _COUNT,
    "min_tokens": _COUNT_OR_NONE,
    "stop": Texts(most=16),
    "banned_strings": Texts(most=64),
    "banned_tokens": TokenIds(most=_MOST_TOKEN_IDS),
    "ignore_eos": Flag(),
    "temperature": Number(low=0, high=100),
    "temperature_last": Flag(),
    "top_k": _LOOKBACK,
    "top_p": _FRACTION,
    "min_p": _FRACTION,
    "xtc_probability": _FRACTION,
    "xtc_threshold": _FRACTION,
    "adaptive_target": Number(low=-1, high=1),
    "adaptive_decay": Number(low=0, high=0.99),
    "repetition_penalty": Number(low=0.01, high=100),
    "presence_penalty": Number(low=-2, high=2),
    "frequency_penalty": Number(low=-2, high=2),
    "penalty_range": _LOOKBACK,
    "repetition_decay": _COUNT_OR_NONE,
    "dry_multiplier": Number(low=0, high=100),
    "dry_base": Number(low=1, high=100),
    "dry_allowed_length": Number(low=0, high=1024, integer=True),
    "dry_range": _LOOKBACK,
    "dry_sequence_breakers": Texts(most=64, json_text=True),
    "logit_bias": TokenBias(most=_MOST_TOKEN_IDS, bias=Number(low=-100, high=100)),
    "seed": Number(low=-INT64, high=INT64 - 1, integer=True),
}
"""Parameter -> what it may be."""

ALIASES: Final[Mapping[str, str]] = {
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "min_length": "min_tokens",
    "stop_sequence": "stop",
    "bad_words": "banned_strings",
    "custom_token_bans": "banned_tokens",
    "ban_eos_token": "ignore_eos",
    "rep_pen": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
    "repetition_range": "penalty_range",
    "repetition_penalty_range": "penalty_range",
    "rep_pen_range": "penalty_range",
    "repeat_last_n": "penalty_range",
    "dry_penalty_last_n": "dry_range",
}
"""OpenAI's newer name, and what TabbyAPI, vLLM, llama.cpp and their clients call the same -> the parameter."""

_WINS: Final = "max_completion_tokens"
"""OpenAI's clients may send both names, and LiteLLM its own default under the older one."""


OTHER_SAMPLERS: Final[Mapping[str, frozenset[float]]] = {
    "allowed_tokens": frozenset(),
    "allowed_token_ids": frozenset(),
    "dynatemp_exponent": frozenset({1}),
    "dynatemp_high": frozenset({0, 1}),
    "dynatemp_low": frozenset({0, 1}),
    "dynatemp_range": frozenset({0}),
    "encoder_repetition_penalty": frozenset({1}),
    "epsilon_cutoff": frozenset({0}),
    "eta_cutoff": frozenset({0}),
    "guidance_scale": frozenset({1}),
    "length_penalty": frozenset({1}),
    "max_temp": frozenset({0, 1}),
    "min_temp": frozenset({0, 1}),
    "mirostat": frozenset({0}),
    "mirostat_mode": frozenset({0}),
    "no_repeat_ngram_size": frozenset({0}),
    "nsigma": frozenset({0, -1}),
    "num_beams": frozenset({1}),
    "penalty_alpha": frozenset({0}),
    "skew": frozenset({0}),
    "smoothing_factor": frozenset({0}),
    "stop_token_ids": frozenset(),
    "temp_exponent": frozenset({1}),
    "tfs": frozenset({1}),
    "token_healing": frozenset({0}),
    "top_a": frozenset({0}),
    "top_n_sigma": frozenset({0, -1}),
    "typical": frozenset({0, 1}),
    "typical_p": frozenset({0, 1}),
    "use_beam_search": frozenset({0}),
}
"""Samplers of other engines -> the values with which they are off, in which clients send them unasked. False is 0, and
an empty list always is off."""


def asks_no_sampler(name: str, value: Any) -> bool:
    """Whether this value of one of `OTHER_SAMPLERS` asks for nothing."""
    if isinstance(value, int | float):
        return value in OTHER_SAMPLERS[name]
    return isinstance(value, list | tuple) and not value


def read_sampling(params: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The sampling parameters of one request in the engine's names and types, each checked; what it does not name from
    `defaults`, which are by name and checked already. Other keys are not looked at.

    A request's own value always wins: a default of `min_tokens` or `max_tokens` that contradicts it gives way. Raises
    `InvalidRequest`.
    """
    named = _named(params)
    if named.get("min_tokens", 0) > named.get("max_tokens", math.inf):
        raise InvalidRequest("min_tokens must not be greater than max_tokens.", "min_tokens")
    merged = {**(defaults or {}), **named}
    if merged.get("min_tokens", 0) > merged.get("max_tokens", math.inf):
        if "min_tokens" in named:
            merged["max_tokens"] = merged["min_tokens"]
        else:
            merged["min_tokens"] = merged["max_tokens"]
    return _in_engine_terms(merged)


def _named(params: Mapping[str, Any]) -> dict[str, Any]:
    """By their main names, each with the one value that all its names have."""
    named: dict[str, Any] = {}
    sent_as: dict[str, str] = {}
    for key in _in_order(params):
        name = ALIASES.get(key, key)
        value = SAMPLING[name].read(key, params[key])
        if name in named and named[name] != value and key != _WINS:
            raise InvalidRequest(f"{key} and {sent_as[name]} are one parameter; send one of them.", key)
        named[name], sent_as[name] = value, key
    return named


def _in_order(params: Mapping[str, Any]) -> Sequence[str]:
    """Main names first, and `max_completion_tokens` behind all."""
    mains = [key for key in params if key in SAMPLING]
    aliases = [key for key in params if key in ALIASES]
    return [*mains, *sorted(aliases, key=lambda key: key == _WINS)]


def _in_engine_terms(values: dict[str, Any]) -> dict[str, Any]:
    """-1 and 0 are what other engines call off or all."""
    values = dict(values)
    if "top_k" in values:
        values["top_k"] = max(0, values["top_k"])
    if values.get("top_p") == 0:
        # The least set of tokens with any probability at all is the likeliest one.
        values.update(top_p=1.0, top_k=1)
    if values.get("penalty_range") == -1:
        values["penalty_range"] = None
    if "dry_range" in values:
        values["dry_range"] = max(0, values["dry_range"])
    if values.get("adaptive_target", 0) < 0:
        values["adaptive_target"] = 1.0
    return values
