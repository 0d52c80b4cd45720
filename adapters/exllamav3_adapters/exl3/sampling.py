"""From the contract's parameters to exllamav3's sampler."""

from __future__ import annotations

from typing import Any

import torch
from exllamav3.generator.sampler import (
    SS_DRY,
    SS_XTC,
    CustomSampler,
    SS_AdaptiveP,
    SS_Argmax,
    SS_BanTokens,
    SS_Base,
    SS_LogitBias,
    SS_MinP,
    SS_PresFreqP,
    SS_RepP,
    SS_Sample,
    SS_Temperature,
    SS_TopK,
    SS_TopP,
    dry_sequence_breaker_tokens,
)

from exllamav3_adapters.contract import GenerationParams

LEAST_TEMPERATURE = 1e-4
"""Below it an answer is greedy: nothing but the likeliest token would be drawn, and logits divided by it overflow."""

_EVERYWHERE = 10**8
"""Tokens: more than any context or vocabulary. Two of them are still an int of the kernels'."""


def build_sampler(params: GenerationParams, tokenizer: Any) -> Any:
    """The steps of exllamav3's `ComboSampler` in its order, with bans before them and XTC after top-p.

    Bans, biases and penalties, then temperature, min-p, top-k, top-p, XTC, or the temperature there, and the draw. A
    temperature of 0 is greedy, and so is a top-k of 1: what comes after the penalties is left out then. See
    `scans_vocabulary` for where to call it.
    """
    shaping = _shaping_steps(params, tokenizer)
    if params.temperature < LEAST_TEMPERATURE or params.top_k == 1:
        return CustomSampler([*shaping, SS_Argmax()])
    temperature = SS_Temperature(params.temperature)
    filters = [SS_MinP(params.min_p), SS_TopK(min(params.top_k, _EVERYWHERE)), SS_TopP(params.top_p)]
    draw = SS_Sample() if params.adaptive_target == 1.0 else SS_AdaptiveP(params.adaptive_target, params.adaptive_decay)
    if params.xtc_probability > 0.0:
        filters.append(SS_XTC(params.xtc_probability, params.xtc_threshold, tokenizer=tokenizer))
    if not params.temperature_last:
        return CustomSampler([*shaping, temperature, *filters, draw])
    # Without these two exllamav3 takes all the filters in one kernel call, which needs no peak.
    if params.xtc_probability > 0.0 or params.adaptive_target != 1.0:
        filters.append(PeakToOne())
    return CustomSampler([*shaping, *filters, temperature, draw])


def scans_vocabulary(params: GenerationParams) -> bool:
    """Whether `build_sampler` looks at every token of the vocabulary, which would hold up a batch: not to be done on
    the scheduler's thread."""
    return params.dry_multiplier > 0.0 or params.xtc_probability > 0.0


def _shaping_steps(params: GenerationParams, tokenizer: Any) -> list[Any]:
    """What changes the logits themselves. Greedy decoding has these too."""
    reach = min(_EVERYWHERE if params.penalty_range is None else params.penalty_range, _EVERYWHERE)
    fade = min(params.repetition_decay, _EVERYWHERE)
    steps = [
        SS_BanTokens(list(params.banned_tokens)),
        SS_LogitBias(dict(params.logit_bias)),
        SS_RepP(params.repetition_penalty, reach, fade),
        SS_PresFreqP(params.presence_penalty, params.frequency_penalty, reach, fade),
    ]
    if params.dry_multiplier > 0.0:
        texts = params.dry_sequence_breakers
        breakers = None if texts is None else dry_sequence_breaker_tokens(tokenizer, texts)
        steps.append(
            SS_DRY(
                params.dry_multiplier,
                params.dry_base,
                params.dry_allowed_length,
                min(params.dry_range, _EVERYWHERE),
                breakers,
                tokenizer=tokenizer,
            )
        )
    return steps


class PeakToOne(SS_Base):  # type: ignore[misc]
    """Scales probabilities so that the likeliest is 1: a low temperature raises them to a power that would make 0 of
    them all."""

    def run(self, state: Any) -> None:
        if state.probs is not None:
            state.probs /= torch.amax(state.probs, dim=-1, keepdim=True)
