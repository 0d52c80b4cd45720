"""The policy under the real scheduler: what is assigned to pages while requests run, and what stays of a hot head."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from exl3_requests import answer, greedy, prompt
from page_table_run import assert_is_up_to_date, rebuilt_order

from exllamav3_adapters.contract import Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.exl3.page_chain import page_hashes

Load = Callable[..., Awaitable[Exl3Engine]]
HEAD_TOKENS = (1000, 1500, 2000)


def with_tail(head: Prompt, seed: int) -> Prompt:
    source = random.Random(seed)
    return Prompt(token_ids=(*head.token_ids, *(source.randrange(3, 259) for _ in range(60))))


async def flood(engine: Exl3Engine, cache_tokens: int) -> None:
    for seed in range(2 * cache_tokens // 2000 + 1):
        await answer(engine.generate(prompt(2000, seed=1000 + seed), greedy(1)))


async def served_after_flood(engine: Exl3Engine, cache_tokens: int) -> list[float]:
    """By head: the part of its tokens that its next request finds in the cache."""
    heads = [prompt(tokens, seed=tokens) for tokens in HEAD_TOKENS]
    for turn in range(3):
        for number, head in enumerate(heads):
            await answer(engine.generate(with_tail(head, 10 * turn + number), greedy(1)))
    await flood(engine, cache_tokens)
    parts = []
    for number, head in enumerate(heads):
        _, finished = await answer(engine.generate(with_tail(head, 100 + number), greedy(1)))
        parts.append(finished.cached_tokens / len(head.token_ids))
    return parts


@pytest.mark.full
async def test_the_order_is_up_to_date_while_requests_run(load: Load, tmp_path: Path) -> None:
    """With all that the policy does: requests that are not retained, prefills that yield, and prompts forgotten."""
    engine = await load(
        MemoryOptions(aging_lfu=True, sysmem_kv_cache=1, aging_persist_dir=str(tmp_path), aging_capture_prefixes=True)
    )
    table = engine._scheduler._generator.pagetable
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        assert_is_up_to_date(table, rebuilt_order(table))
        table.validate_pagetable(engine._scheduler._generator.active_jobs)

    async def one(seed: int) -> None:
        source = random.Random(seed)
        wanted = prompt(source.randrange(10, 1200), seed=source.randrange(5))
        kind, tail = source.random(), with_tail(wanted, source.randrange(3))
        if kind < 0.1:
            await engine.forget(wanted)
        elif kind < 0.2:
            assert [event async for event in engine.prefill(wanted)]
        elif kind < 0.4:
            await answer(engine.generate(tail, greedy(source.randrange(1, 100)), retain=False))
        elif kind < 0.5:
            stream: Any = engine.generate(tail, greedy(100))
            await anext(aiter(stream))
            await stream.aclose()
        else:
            await answer(engine.generate(tail, greedy(source.randrange(1, 300))))

    async def some(number: int) -> None:
        for seed in range(8):
            await one(10 * number + seed)

    running = [asyncio.create_task(some(number)) for number in range(4)]
    while not all(task.done() for task in running):
        await engine._scheduler.call(check)
        await asyncio.sleep(0.01)
    await asyncio.gather(*running)
    await engine._scheduler.call(check)
    assert checks > 30
    assert table.metrics["evictions_live"] > 10


async def test_hot_heads_outlive_a_flood_of_twice_the_cache(load: Load) -> None:
    engine = await load(MemoryOptions(aging_lfu=True), cache_size=16384)
    assert min(await served_after_flood(engine, 16384)) > 0.95


async def test_without_the_policy_they_do_not(load: Load) -> None:
    engine = await load(cache_size=16384)
    assert max(await served_after_flood(engine, 16384)) < 0.1


@pytest.mark.full
async def test_a_hot_head_outlives_a_flood_in_system_memory(load: Load) -> None:
    """Where the flood takes everything from the cache, the tier behind it keeps what has credit."""
    engine = await load(MemoryOptions(aging_lfu=True, sysmem_kv_cache=8))
    table = engine._scheduler._generator.pagetable
    tier = engine._scheduler._generator.cpu_page_cache
    head = prompt(2 * 256, seed=1)
    for seed in range(3):
        await answer(engine.generate(with_tail(head, seed), greedy(1)))
    for seed in range(tier.max_slots // 15 * 3 + 3):
        await answer(engine.generate(prompt(15 * 256 + 10, seed=100 + seed), greedy(1)))
    assert tier.metrics["evictions"] > tier.max_slots
    phash = page_hashes(head.token_ids)[0]
    assert table.credit.log_credit(phash) is not None
    assert table.get_live_page(phash) is None
    _, finished = await answer(engine.generate(with_tail(head, 9), greedy(1)))
    assert finished.cached_tokens >= 2 * 256
