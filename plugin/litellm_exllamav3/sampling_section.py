"""The section `sampling`: what a model's requests are sampled with where they do not say.

Names and ranges are those of requests (`sampling_params.py`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.sampling_params import SAMPLING
from litellm_exllamav3.section import Real, Section, Whole

_UNSET = {
    field.name: str(field.default).lower() if isinstance(field.default, bool) else f"{field.default:g}"
    for field in fields(GenerationParams)
    if isinstance(field.default, int | float)
}
"""Parameter -> what an engine takes where it is left out."""


def _default(name: str, meaning: str) -> Any:
    """`meaning`, then what is allowed, and what holds where it is left out."""
    otherwise = f" Left out: {_UNSET[name]}." if name in _UNSET else ""
    allowed = str(SAMPLING[name])
    return Field(default=None, description=f"{meaning} {allowed[0].upper()}{allowed[1:]}.{otherwise}")


class SamplingSection(Section):
    """Defaults for the parameters that a request does not name; what it names wins. What neither names is left at the
    model's own distribution: recommendations in its `generation_config.json` are not read."""

    max_tokens: Whole | None = _default("max_tokens", "Most tokens of an answer; by default what the context holds.")
    min_tokens: Whole | None = _default("min_tokens", "Tokens before an answer may end its turn.")
    stop: tuple[str, ...] | str | None = _default("stop", "Texts that end an answer and are not part of it.")
    banned_strings: tuple[str, ...] | str | None = _default("banned_strings", "Texts that are never written.")
    banned_tokens: tuple[Whole, ...] | str | None = _default("banned_tokens", "Tokens that are never sampled.")
    ignore_eos: bool | None = _default("ignore_eos", "Go on after a token that ends the turn.")
    temperature: Real | None = _default(
        "temperature", "0: greedy. What `generation_config.json` recommends has no effect unless it is set here."
    )
    temperature_last: bool | None = _default("temperature_last", "Apply the temperature after the filters.")
    top_k: Whole | None = _default("top_k", "Choose among so many likeliest tokens. 0 or -1: off.")
    top_p: Real | None = _default("top_p", "Choose among the likeliest tokens of this probability together.")
    min_p: Real | None = _default("min_p", "Leave out tokens below this fraction of the likeliest one's probability.")
    xtc_probability: Real | None = _default(
        "xtc_probability", "How often all but the last of the tokens above `xtc_threshold` are left out."
    )
    xtc_threshold: Real | None = _default("xtc_threshold", "Probability from which XTC counts a token.")
    adaptive_target: Real | None = _default(
        "adaptive_target", "Adaptive-p: the probability around which tokens are chosen. 1, or below 0: off."
    )
    adaptive_decay: Real | None = _default("adaptive_decay", "How slowly adaptive-p forgets.")
    repetition_penalty: Real | None = _default("repetition_penalty", "Divides the logits of earlier tokens. 1: off.")
    presence_penalty: Real | None = _default("presence_penalty", "Taken from the logit of each earlier token.")
    frequency_penalty: Real | None = _default("frequency_penalty", "The same for each time that it came.")
    penalty_range: Whole | None = _default(
        "penalty_range", "Last tokens, of prompt and answer, that these three look at. -1: all."
    )
    repetition_decay: Whole | None = _default("repetition_decay", "Tokens before them over which the penalties fade.")
    dry_multiplier: Real | None = _default("dry_multiplier", "DRY: penalty for going on with a repetition. 0: off.")
    dry_base: Real | None = _default("dry_base", "By what it grows with each token of it.")
    dry_allowed_length: Whole | None = _default("dry_allowed_length", "Tokens that may repeat without it.")
    dry_range: Whole | None = _default("dry_range", "Last tokens that are searched for repetitions. 0 or -1: all.")
    dry_sequence_breakers: tuple[str, ...] | str | None = _default(
        "dry_sequence_breakers", "Texts over which no repetition is followed; by default punctuation and line ends."
    )
    logit_bias: dict[Whole, Real] | None = _default("logit_bias", "What is added to the logits of tokens.")
    seed: Whole | None = _default("seed", "The same seed and request give the same answer.")

    @field_validator("*")
    @classmethod
    def _as_in_a_request(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None or info.field_name is None:
            return value
        try:
            return SAMPLING[info.field_name].read(info.field_name, value)
        except InvalidRequest as error:
            # The settings' faults name the option themselves.
            reason = error.message.removeprefix(info.field_name).removeprefix(":").strip().rstrip(".")
            raise ValueError(reason) from None

    @model_validator(mode="after")
    def _may_end(self) -> SamplingSection:
        if self.max_tokens is not None and (self.min_tokens or 0) > self.max_tokens:
            raise ValueError("min_tokens is greater than max_tokens; make it less")
        return self

    def defaults(self) -> dict[str, Any]:
        """What is set, by name, for `generation_params`."""
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
