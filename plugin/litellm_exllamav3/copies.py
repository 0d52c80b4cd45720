"""Several answers to one prompt: how many, when the others start, and that they differ."""

from __future__ import annotations

from typing import Final

from exllamav3_adapters.contract import EngineInfo, Finished, PrefillProgress, Reasoning, Text, ToolCallStart
from exllamav3_adapters.errors import InvalidRequest

MOST_COPIES: Final = 1024
"""Of one prompt, by any model. Places for the answers are kept before the model's own limit can be known."""
MOST_CHOICES: Final = 2**16
"""Of all prompts of a request."""
_INT64: Final = 2**63


def refuse_too_many(num_prompts: int, num_copies: int) -> None:
    """Raises `InvalidRequest` for more answers than there can be places for."""
    if num_prompts * num_copies > MOST_CHOICES:
        raise InvalidRequest(
            f"prompt holds {num_prompts} prompts, of which n asks for {num_copies} answers each; "
            f"at most {MOST_CHOICES} answers can be asked for at once.",
            "prompt",
        )


def refuse_past_the_batch(num_choices: int, info: EngineInfo) -> None:
    """Raises `InvalidRequest` for more answers to a prompt than are decoded together."""
    if num_choices > info.max_batch_size:
        raise InvalidRequest(
            f"n must be at most {info.max_batch_size} with model '{info.model_key}', which answers that many side by "
            f"side (max_batch_size); it is {num_choices}.",
            "n",
        )


def has_prefilled(event: object) -> bool:
    """Whether a stream that has come to `event` has its prompt in the cache, where other answers find it."""
    if isinstance(event, PrefillProgress):
        return event.done_tokens >= event.total_tokens
    return isinstance(event, Text | Reasoning | ToolCallStart | Finished)


def other_seed(seed: int | None, index: int) -> int | None:
    """Another seed of 64 bits for another answer. None stays random."""
    if seed is None:
        return None
    return (seed + index + _INT64) % (2 * _INT64) - _INT64
