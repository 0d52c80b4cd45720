"""Recurrent checkpoints under pressure: by cost (GDS) and by recency, with the answers as if nothing were cached."""

from __future__ import annotations

from typing import Literal

from exllamav3_adapters.contract import Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from gpu_check.check import Check, Figures, expect
from gpu_check.comparison import RECURRENT, Comparison
from gpu_check.requests import Answer, ask, random_prompt

_ANSWER_TOKENS = 8


async def check_checkpoints(check: Check) -> Figures:
    """The same requests under each order of eviction."""
    vocabulary = check.shape("hybrid").vocabulary
    heads = [random_prompt(tokens, seed, vocabulary) for seed, tokens in enumerate((400, 700, 1200))]
    prompts = [
        Prompt(token_ids=head.token_ids + random_prompt(80, 100 * turn + number, vocabulary).token_ids)
        for turn in range(check.pick(card=6, cpu=3))
        for number, head in enumerate(heads)
    ]
    cold = await _cold(check, prompts)
    found = Comparison(RECURRENT)
    by_cost = await _under_pressure(check, "gds", prompts, cold, found)
    by_recency = await _under_pressure(check, "lru", prompts, cold, found)
    found.check()
    return {**found.figures(), "gds": by_cost, "lru": by_recency}


async def _cold(check: Check, prompts: list[Prompt]) -> list[Answer]:
    check.say("cold")
    answers = []
    async with check.loaded(check.settings("hybrid", MemoryOptions(sysmem_recurrent_cache=0))) as engine:
        for prompt in prompts:
            await engine.forget(prompt)
            answers.append(await ask(engine, prompt, _ANSWER_TOKENS, logprobs=True))
    return answers


async def _under_pressure(
    check: Check, order: Literal["gds", "lru"], prompts: list[Prompt], cold: list[Answer], found: Comparison
) -> Figures:
    check.say(f"by {order}")
    mebibytes = check.pick(card=4, cpu=2)  # seven states, fewer than the requests leave behind
    memory = MemoryOptions(sysmem_kv_cache=64, sysmem_recurrent_cache=mebibytes)
    settings = check.settings("hybrid", memory, recurrent_eviction=order, recurrent_frontier_checkpoints=True)
    async with check.loaded(settings) as engine:
        for number, (prompt, answer) in enumerate(zip(prompts, cold, strict=True)):
            found.add(f"{order}, request {number}", answer, await ask(engine, prompt, _ANSWER_TOKENS, logprobs=True))
        counters = (await engine.stats()).counters
        said = engine.info.effective_settings
    evicted = counters["checkpoint_evictions_room"]
    expect(evicted > 0, f"{order}: {mebibytes} MiB hold every checkpoint, so nothing is shown")
    expect(order in said.get("model.recurrent_eviction", "lru"), f"the engine says of its order: {dict(said)}")
    return {"cached_tokens": counters["cached_tokens"], "prompt_tokens": counters["prompt_tokens"], "evicted": evicted}
