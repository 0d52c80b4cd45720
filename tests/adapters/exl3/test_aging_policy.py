"""`memory.aging_lfu` in an engine: whose claims earn credit, and who carries the option out."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from exl3_requests import answer, greedy, prompt
from exllamav3 import Generator
from exllamav3.generator.pagetable import CachePage, PageTable

from exllamav3_adapters.contract import Prefilled, Prompt
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.aging_policy import max_credit_entries
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.exl3.generator_options import aging_is_ours, effective_settings, generator_options
from exllamav3_adapters.exl3.page_chain import page_hashes

Load = Callable[..., Awaitable[Exl3Engine]]
PAGE = 256
AGING = MemoryOptions(aging_lfu=True)


def after(head: Prompt, seed: int, num_tokens: int = 300) -> Prompt:
    """The head, and what one request adds to it: more than a page."""
    source = random.Random(seed)
    return Prompt(token_ids=(*head.token_ids, *(source.randrange(3, 259) for _ in range(num_tokens))))


async def counter(engine: Exl3Engine, name: str) -> float:
    return (await engine.stats()).counters[name]


async def known_pages(engine: Exl3Engine, wanted: Prompt) -> list[bytes]:
    """Pages of the prompt that the credit table has heard of."""
    entries = engine._scheduler._generator.pagetable.credit._entries
    return [phash for phash in page_hashes(wanted.token_ids) if phash in entries]


async def test_a_head_earns_credit_each_time_prompts_part_after_it(load: Load) -> None:
    engine = await load(AGING)
    head = prompt(2 * PAGE)
    for seed in range(3):
        await answer(engine.generate(after(head, seed), greedy(1)))
    assert await counter(engine, "credit_hits") == 2
    credit = engine._scheduler._generator.pagetable.credit
    chain = page_hashes(after(head, 2).token_ids)
    assert [credit.log_credit(page) is not None for page in chain] == [True, True, False]


async def test_a_requeue_of_a_long_answer_earns_no_credit(load: Load) -> None:
    """It would: it claims its chain anew, and another prompt may have parted from it meanwhile."""
    engine = await load(AGING)
    head = prompt(2 * PAGE)
    running = engine.generate(after(head, 1), greedy(600, min_tokens=600))
    await anext(running)
    await answer(engine.generate(after(head, 2), greedy(1)))
    _, finished = await answer(running)
    assert finished.completion_tokens > PAGE, "it was never requeued"
    assert await counter(engine, "credit_hits") == 1


async def test_a_request_that_waits_for_pages_claims_them_once(load: Load) -> None:
    engine = await load(AGING, max_batch_size=1)
    head = prompt(2 * PAGE)
    running = engine.generate(after(head, 1), greedy(40))
    waiting = engine.generate(after(head, 2), greedy(1))
    await answer(running)
    await answer(waiting)
    assert await counter(engine, "credit_hits") == 1


async def test_a_background_prefill_leaves_no_credit_however_often_it_yields(load: Load) -> None:
    engine = await load(AGING)
    wanted = prompt(8 * PAGE + 30)
    stream = engine.prefill(wanted)
    for seed in range(3):
        await anext(stream)
        await answer(engine.generate(prompt(50, seed=10 + seed), greedy(1)))
    events = [event async for event in stream]
    assert isinstance(events[-1], Prefilled)
    assert await counter(engine, "prefill_yields") > 0
    assert await known_pages(engine, wanted) == []


async def test_a_request_that_is_not_retained_leaves_no_trace(load: Load) -> None:
    engine = await load(AGING)
    head = prompt(2 * PAGE)
    for seed in range(4):
        await answer(engine.generate(after(head, seed), greedy(1), retain=False))
        assert await known_pages(engine, after(head, seed)) == []
    assert await counter(engine, "credit_hits") == 0
    assert await counter(engine, "tokens_saved") == 0


async def test_the_tokens_that_it_saves_are_counted(load: Load) -> None:
    engine = await load(AGING)
    head = prompt(2 * PAGE)
    for seed in range(3):
        await answer(engine.generate(after(head, seed), greedy(1)))
    assert await counter(engine, "tokens_saved") == await counter(engine, "cached_tokens") >= 2 * 2 * PAGE


async def test_evictions_are_counted_by_their_class(load: Load) -> None:
    engine = await load(AGING)
    for seed in range(3):
        await answer(engine.generate(prompt(15 * PAGE, seed=seed), greedy(1)))
    assert await counter(engine, "evictions_empty") >= 16
    assert await counter(engine, "evictions_recency") > 10
    for name in ("orphan", "credit", "last_resort"):
        assert await counter(engine, f"evictions_{name}") == 0


async def test_a_page_that_is_evicted_and_asked_for_at_once_is_regretted(load: Load) -> None:
    engine = await load(AGING)
    wanted = prompt(2 * PAGE + 10)
    await answer(engine.generate(wanted, greedy(1)))
    await answer(engine.generate(prompt(15 * PAGE + 10, seed=1), greedy(1)))
    await answer(engine.generate(wanted, greedy(1)))
    assert await counter(engine, "regretted_evictions") == 2


async def test_a_pinned_page_is_counted_and_kept(load: Load) -> None:
    engine = await load(AGING)
    pinned = prompt(2 * PAGE + 100)
    assert [event async for event in engine.prefill(pinned, pin=True)]
    for seed in range(1, 4):
        await answer(engine.generate(prompt(10 * PAGE, seed=seed), greedy(1)))
    assert await counter(engine, "pinned_pages") == 3
    _, finished = await answer(engine.generate(pinned, greedy(1)))
    assert finished.cached_tokens >= 2 * PAGE


async def test_off_leaves_the_page_table_and_its_order_to_exllamav3(load: Load) -> None:
    engine = await load(MemoryOptions(aging_half_life_hours=2.0))
    table = engine._scheduler._generator.pagetable
    for seed in range(4):
        await answer(engine.generate(prompt(900 * (seed + 1), seed=seed), greedy(1)))
    assert type(table) is PageTable
    assert {type(page) for page in table.all_pages} == {CachePage}
    assert list(table.build_eviction_order()) == list(PageTable.build_eviction_order(table))
    counters = (await engine.stats()).counters
    assert not {"credit_hits", "credit_entries", "evictions_recency", "tokens_saved"} & set(counters)
    assert not [name for name in engine.info.effective_settings if "aging" in name]


async def test_what_it_is_told_takes_effect(load: Load) -> None:
    engine = await load(
        MemoryOptions(aging_lfu=True, aging_half_life_hours=0.5, aging_hit_cap_pages=1, aging_weight_cap=1.5)
    )
    head = prompt(2 * PAGE)
    for seed in range(6):
        await answer(engine.generate(Prompt(token_ids=head.token_ids[:PAGE] + prompt(300, seed).token_ids), greedy(1)))
    table = engine._scheduler._generator.pagetable
    now = table._clock()
    assert table.credit.weight(page_hashes(head.token_ids)[0], now) == pytest.approx(1.5, abs=0.02)
    assert table.credit.weight(page_hashes(head.token_ids)[0], now + 1800) == pytest.approx(0.75, abs=0.02)


def test_the_credit_table_knows_more_pages_than_the_cache_holds() -> None:
    assert max_credit_entries(16) == 65536
    assert max_credit_entries(50_000) == 200_000


# Who carries it out


class GeneratorWithAging:
    """The signature of a later release, as its pull request has it."""

    def __init__(
        self,
        max_chunk_size: int = 2048,
        aging_lfu: bool = False,
        aging_half_life_hours: float = 6.0,
        aging_persist_dir: str | None = None,
        **kwargs: Any,
    ) -> None: ...


def settings(**memory: Any) -> EngineSettings:
    return EngineSettings(
        model_key="m", model=ModelOptions(model_dir="demo"), memory=MemoryOptions(aging_lfu=True, **memory)
    )


def test_the_installed_exllamav3_is_given_none_of_the_options() -> None:
    assert aging_is_ours(settings(), Generator)
    assert not [name for name in generator_options(settings(aging_share=0.5), Generator) if "aging" in name]


def test_a_release_that_has_the_policy_itself_gets_the_options() -> None:
    told = settings(aging_half_life_hours=2.0, aging_persist_dir="/credit")
    assert not aging_is_ours(told, GeneratorWithAging)
    assert generator_options(told, GeneratorWithAging) == {
        "max_chunk_size": 2048,
        "aging_lfu": True,
        "aging_half_life_hours": 2.0,
        "aging_persist_dir": "/credit",
    }


def test_an_option_that_such_a_release_lacks_is_named_if_it_was_set() -> None:
    with pytest.raises(LoadFailed, match=r"does not know memory\.aging_share, memory\.aging_weight_cap;"):
        generator_options(settings(aging_share=0.5, aging_weight_cap=2.0), GeneratorWithAging)


def test_the_log_says_who_carries_out_which_option() -> None:
    told = settings(aging_capture_prefixes=True)
    ours, theirs = [effective_settings(told, generator) for generator in (Generator, GeneratorWithAging)]
    assert ours["memory.aging_lfu"] == "True (ours)"
    assert ours["memory.aging_share"] == "0.03 (ours)"
    assert ours["memory.aging_prefix_max_entries"] == "64 (ours)"
    assert theirs["memory.aging_half_life_hours"] == "1.0 (exllamav3)"


def test_options_without_effect_are_not_named() -> None:
    effective = effective_settings(settings(), Generator)
    assert "memory.aging_persist_dir" not in effective
    assert "memory.aging_prefix_min_tokens" not in effective
