"""Prompts, and answers with the two likeliest tokens at each step."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from exllamav3_adapters.contract import Engine, Finished, GenerationParams, Prompt, Text, TokenLogprob
from gpu_check.random_tokenizer import SPECIAL_TOKENS

PAGE = 256
"""Tokens."""


@dataclass(kw_only=True, slots=True)
class Answer:
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reason: str = ""
    first_token: float = 0.0
    """Seconds since the request."""
    last_token: float = 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one, which belongs to the prefill."""
        return (self.completion_tokens - 1) / max(self.last_token - self.first_token, 1e-9)


def random_prompt(num_tokens: int, seed: int, vocabulary: int) -> Prompt:
    """No two seeds share a page. No special token is among them."""
    source = random.Random(seed)
    return Prompt(token_ids=tuple(source.randrange(len(SPECIAL_TOKENS), vocabulary) for _ in range(num_tokens)))


def greedy(max_tokens: int, **params: Any) -> GenerationParams:
    """As long as asked for, the likeliest token each time."""
    return GenerationParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **params)


async def ask(engine: Engine, prompt: Prompt, max_tokens: int, *, logprobs: bool = False) -> Answer:
    params = greedy(max_tokens, top_logprobs=2 if logprobs else None)
    return await read(engine.generate(prompt, params))


async def read(stream: AsyncIterator[Any]) -> Answer:
    """The whole answer, timed from here. Raises what the stream raises."""
    answer, began = Answer(), time.perf_counter()
    async for event in stream:
        if isinstance(event, Text):
            answer.last_token = time.perf_counter() - began
            answer.first_token = answer.first_token or answer.last_token
            answer.text += event.text
            answer.logprobs += event.logprobs
        elif isinstance(event, Finished):
            answer.prompt_tokens, answer.cached_tokens = event.prompt_tokens, event.cached_tokens
            answer.completion_tokens, answer.reason = event.completion_tokens, event.reason
    return answer


def whole_pages(prompt: Prompt) -> int:
    """Tokens of a prompt that a repeat finds in the cache at the least: its last page is never whole."""
    return (len(prompt.token_ids) - 1) // PAGE * PAGE
