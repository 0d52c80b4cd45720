"""Prompts and answers of the tests beside it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

from exllamav3_adapters.contract import Finished, GenerationParams, Prompt, Text


def prompt(num_tokens: int, seed: int = 0) -> Prompt:
    """Random tokens of the tiny model, no special one."""
    source = random.Random(seed)
    return Prompt(token_ids=tuple(source.randrange(3, 259) for _ in range(num_tokens)))


def greedy(max_tokens: int = 4, **params: Any) -> GenerationParams:
    return GenerationParams(max_tokens=max_tokens, temperature=0.0, **params)


async def answer(stream: AsyncIterator[Any]) -> tuple[str, Finished]:
    text = ""
    async for event in stream:
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, Finished):
            return text, event
    raise AssertionError("the stream ended without Finished")
