"""Which token ids a request may name: the vocabulary's."""

from __future__ import annotations

from collections.abc import Collection

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest


def check_token_ids(params: GenerationParams, vocab_size: int) -> None:
    """Raises `InvalidRequest` for an id of `banned_tokens` or `logit_bias` that the vocabulary has not, and where it
    leaves no token to be sampled."""
    _check("banned_tokens", params.banned_tokens, vocab_size)
    _check("logit_bias", params.logit_bias, vocab_size)
    if len(params.banned_tokens) >= vocab_size and len(set(params.banned_tokens)) >= vocab_size:
        raise InvalidRequest("banned_tokens holds every token of the vocabulary; leave some", "banned_tokens")


def _check(name: str, token_ids: Collection[int], vocab_size: int) -> None:
    outside = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise InvalidRequest(f"{name}: token ids must be from 0 to {vocab_size - 1}; one is {outside}", name)
