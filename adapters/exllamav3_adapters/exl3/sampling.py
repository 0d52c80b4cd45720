"""From the contract's parameters to exllamav3's sampler and filters."""

from __future__ import annotations

from typing import Any

from exllamav3 import ComboSampler, LLGuidanceFilter

from exllamav3_adapters.contract import GenerationParams, Grammar
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.exl3.guarded_filter import GuardedFilter

_GRAMMAR_ARGUMENT = {"json_schema": "json_schema", "regex": "regex", "lark": "lark_grammar"}


def build_sampler(params: GenerationParams) -> Any:
    """Penalties first, then temperature, min-p, top-k and top-p; greedy where the temperature is 0."""
    return ComboSampler(
        rep_p=params.repetition_penalty,
        freq_p=params.frequency_penalty,
        pres_p=params.presence_penalty,
        temperature=params.temperature,
        min_p=params.min_p,
        top_k=params.top_k,
        top_p=params.top_p,
    )


def build_filters(grammar: Grammar | None, tokenizer: Any) -> list[Any]:
    """The filters of one job; a grammar that is complete ends the answer. Raises InvalidRequest for a bad grammar.

    Compiling a large schema takes long enough to hold up a batch, so this does not run on the scheduler's thread.
    """
    if grammar is None:
        return []
    try:
        inner = LLGuidanceFilter(
            tokenizer, eos_after_completed=True, **{_GRAMMAR_ARGUMENT[grammar.kind]: grammar.source}
        )
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"the {grammar.kind} cannot be used as a grammar: {error}", "response_format") from error
    return [GuardedFilter(inner)]
