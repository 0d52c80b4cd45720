"""Shared heads under aging-LFU outlive a flood of other prompts, and under recency alone they do not."""

from __future__ import annotations

from exllamav3_adapters.contract import Engine, Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from gpu_check.check import Check, Figures, expect
from gpu_check.requests import ask, random_prompt

_HEAD_TOKENS = (1000, 1500, 2000)
_TAIL_TOKENS = 60
_FLOOD_PROMPT_TOKENS = 2000
_CACHE_TOKENS = 16384
_KEPT, _LOST = 0.95, 0.1


async def check_aging(check: Check) -> Figures:
    """The part of each head's tokens that its next request finds, after prompts of twice the cache."""
    with_policy = await _served(check, MemoryOptions(aging_lfu=True))
    without = await _served(check, MemoryOptions())
    expect(min(with_policy) > _KEPT, f"under aging-LFU the parts of the heads that stay are {with_policy}")
    expect(max(without) < _LOST, f"the flood is too small: without aging-LFU {without} of the heads stay")
    return {"head_tokens": list(_HEAD_TOKENS), "served_with_aging_lfu": with_policy, "served_by_recency": without}


async def _served(check: Check, memory: MemoryOptions) -> list[float]:
    vocabulary = check.shape("llama").vocabulary
    heads = [random_prompt(tokens, seed, vocabulary) for seed, tokens in enumerate(_HEAD_TOKENS)]
    settings = check.settings("llama", memory, max_seq_len=4096, cache_size=_CACHE_TOKENS)
    check.say("with aging-LFU" if memory.aging_lfu else "by recency alone")
    async with check.loaded(settings) as engine:
        for turn in range(3):
            for number, head in enumerate(heads):
                await _ask_with(engine, head, 10 * turn + number, vocabulary)
        for seed in range(2 * _CACHE_TOKENS // _FLOOD_PROMPT_TOKENS + 1):
            await ask(engine, random_prompt(_FLOOD_PROMPT_TOKENS, 1000 + seed, vocabulary), 1)
        cached = [await _ask_with(engine, head, 500 + number, vocabulary) for number, head in enumerate(heads)]
    return [round(tokens / length, 3) for tokens, length in zip(cached, _HEAD_TOKENS, strict=True)]


async def _ask_with(engine: Engine, head: Prompt, seed: int, vocabulary: int) -> int:
    """A conversation that begins with the head. Returns its cached tokens."""
    tail = random_prompt(_TAIL_TOKENS, 10_000 + seed, vocabulary)
    answer = await ask(engine, Prompt(token_ids=head.token_ids + tail.token_ids), 1)
    return answer.cached_tokens
