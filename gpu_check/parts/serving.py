"""What serving takes at the engine: the first token by where its head is, and the rate of decoding.

Beside it exllamav3's own synchronous loop over the same model, with nothing around it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from exllamav3_adapters.contract import Engine, Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from gpu_check.check import Check, Figures, expect
from gpu_check.requests import ask, random_prompt, whole_pages
from gpu_check.synchronous_loop import SynchronousLoop

_COLD, _WARM, _RESTORED = 3, 20, 3
"""Samples."""


async def measure_serving(check: Check) -> Figures:
    """The engine is in a process of its own, as it serves. Only one of the two computes at a time."""
    heads = check.pick(card=(1024, 4096, 16384), cpu=(512,))
    disk = check.state / "tiers" / f"serving-{check.engine}"
    tiers = MemoryOptions(sysmem_kv_cache=512, disk_cache_dir=str(disk), disk_cache_size=4096)
    context = check.pick(card=20480, cpu=1024)
    settings = check.settings("llama", tiers, max_seq_len=context, cache_size=2 * context, chunk_size=512)
    figures: Figures = {}
    async with check.loaded(settings, hosted=True) as engine:
        await ask(engine, random_prompt(300, 9999, check.shape("llama").vocabulary), 8)
        for length in heads:
            check.say(f"the first token after {length} tokens")
            figures[f"first_token_seconds_{length}"] = await _first_tokens(check, engine, length)
        check.say("decoding")
        figures["decode_tokens_per_second"] = await _decode_rates(check, engine)
    async with check.loaded(settings, hosted=True) as engine:
        await ask(engine, random_prompt(300, 9998, check.shape("llama").vocabulary), 8)
        for length in heads:
            check.say(f"the first token after a restart, {length} tokens on disk")
            restored = [await _timed(engine, _prompt(check, length, seed), warm=True) for seed in range(_RESTORED)]
            figures[f"first_token_seconds_{length}"]["from_disk_after_a_restart"] = _summary(restored)
    return figures


async def _first_tokens(check: Check, engine: Engine, length: int) -> Figures:
    prompts = [_prompt(check, length, seed) for seed in range(max(_COLD, _RESTORED))]
    for prompt in prompts:
        await engine.forget(prompt)
    cold = [await _timed(engine, prompt, warm=False) for prompt in prompts]
    warm = [await _timed(engine, prompts[-1], warm=True) for _ in range(check.pick(card=_WARM, cpu=3))]
    return {"cold": _summary(cold), "warm": _summary(warm)}


async def _timed(engine: Engine, prompt: Prompt, *, warm: bool) -> float:
    answer = await ask(engine, prompt, 2)
    cached = answer.cached_tokens >= whole_pages(prompt) if warm else answer.cached_tokens == 0
    expect(
        cached, f"{answer.cached_tokens} of {len(prompt.token_ids)} tokens are cached, which is not the case to time"
    )
    return answer.first_token


async def _decode_rates(check: Check, engine: Engine) -> Figures:
    """Each prompt by one and then by the other."""
    tokens, pairs = check.pick(card=(256, 20), cpu=(24, 2))
    ours, alone = [], []
    with SynchronousLoop(check.engine, check.settings("llama", chunk_size=512)) as loop:
        loop.decode_rate(_prompt(check, 300, 400), 8)
        for pair in range(pairs):
            prompt = _prompt(check, 300, 500 + pair)
            alone.append(loop.decode_rate(prompt, tokens))
            ours.append((await ask(engine, prompt, tokens)).decode_rate)
    return {"engine": _summary(ours), "synchronous_loop": _summary(alone), "tokens": tokens}


def _prompt(check: Check, length: int, seed: int) -> Prompt:
    return random_prompt(length, 1000 * length + seed, check.shape("llama").vocabulary)


def _summary(samples: Sequence[float]) -> Figures:
    return {"median": round(statistics.median(samples), 5), "samples": [round(value, 5) for value in samples]}
