"""Context and cache in tokens, where the user left them to the model."""

from __future__ import annotations

from exllamav3.constants import PAGE_SIZE

from exllamav3_adapters.engine_settings import ModelOptions
from exllamav3_adapters.errors import LoadFailed


def context_length(options: ModelOptions, made_for: int | None) -> int:
    """Tokens of prompt and answer together. `made_for`: those that the model was made for, None where that is not
    known. Raises LoadFailed."""
    if options.max_seq_len is None:
        if made_for is None:
            raise LoadFailed("model.max_seq_len: the model's config.json names no context length, so it must be set")
        return made_for
    if made_for is not None and options.max_seq_len > made_for:
        raise LoadFailed(
            f"model.max_seq_len: {options.max_seq_len} is more than the {made_for} tokens that the model was made for"
        )
    return options.max_seq_len


def cache_tokens(options: ModelOptions, context: int) -> int:
    """Tokens of the whole cache, a multiple of 256, for a context of that many. Raises LoadFailed."""
    tokens = options.cache_size or -(-context // PAGE_SIZE) * PAGE_SIZE
    if tokens < context:
        raise LoadFailed(
            f"model.cache_size: {tokens} tokens cannot hold one context of {context}; raise it, or set "
            f"model.max_seq_len to {tokens} at most"
        )
    return tokens
