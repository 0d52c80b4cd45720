"""The same greedy answers, wherever the prompt's pages come from."""

from __future__ import annotations

from exllamav3_adapters.contract import Engine, Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from gpu_check.check import Check, Figures, expect
from gpu_check.comparison import ATTENTION, Comparison
from gpu_check.requests import PAGE, Answer, ask, random_prompt, whole_pages

_ANSWER_TOKENS = 48


async def check_exactness(check: Check) -> Figures:
    """Cold, from the cache, from system memory, from disk in a new process, and cold in a new process."""
    vocabulary = check.shape("llama").vocabulary
    lengths = check.pick(card=(300, 1500, 4000), cpu=(300, 900))
    prompts = [random_prompt(tokens, seed, vocabulary) for seed, tokens in enumerate(lengths)]
    disk = check.state / "tiers" / check.engine
    tiers = MemoryOptions(sysmem_kv_cache=256, disk_cache_dir=str(disk), disk_cache_size=1024)
    found = Comparison(ATTENTION)
    async with check.loaded(check.settings("llama", tiers)) as engine:
        for prompt in prompts:  # an earlier run may have left them on disk
            await engine.forget(prompt)
        check.say("cold, and from the cache")
        cold = [await ask(engine, prompt, _ANSWER_TOKENS, logprobs=True) for prompt in prompts]
        for answer in cold:
            expect(answer.cached_tokens == 0, f"{answer.cached_tokens} tokens of a prompt that is new are cached")
        await _compare(engine, "from the cache", prompts, cold, found)
        check.say("from system memory")
        await _fill(engine, vocabulary)
        await _compare(engine, "from system memory", prompts, cold, found)
        restored = (await engine.stats()).counters["sysmem_pages_restored"]
        expect(restored > 0, "no page came back from system memory")
    check.say("from disk, in a new process")
    async with check.loaded(check.settings("llama", tiers), hosted=True) as engine:
        await _compare(engine, "from disk in a new process", prompts, cold, found)
        from_disk = (await engine.stats()).counters["disk_pages_restored"]
        expect(from_disk > 0, "no page came back from disk")
    check.say("cold, in a new process")
    async with check.loaded(check.settings("llama"), hosted=True) as engine:
        for prompt, answer in zip(prompts, cold, strict=True):
            again = await ask(engine, prompt, _ANSWER_TOKENS, logprobs=True)
            expect(again.cached_tokens == 0, "an engine without tiers knows a prompt of another process")
            found.add(f"{len(prompt.token_ids)} tokens, cold in a new process", answer, again)
    found.check()
    return {**found.figures(), "sysmem_pages_restored": restored, "disk_pages_restored": from_disk}


async def _compare(engine: Engine, whence: str, prompts: list[Prompt], cold: list[Answer], found: Comparison) -> None:
    for prompt, answer in zip(prompts, cold, strict=True):
        again = await ask(engine, prompt, _ANSWER_TOKENS, logprobs=True)
        expect(
            again.cached_tokens >= whole_pages(prompt),
            f"{whence}: {again.cached_tokens} of {len(prompt.token_ids)} tokens are cached",
        )
        found.add(f"{len(prompt.token_ids)} tokens, {whence}", answer, again)


async def _fill(engine: Engine, vocabulary: int) -> None:
    """Takes every page of the cache for other prompts."""
    tokens = engine.info.cache_tokens // 2 - PAGE
    for seed in range(100, 103):
        await ask(engine, random_prompt(tokens, seed, vocabulary), 1)
