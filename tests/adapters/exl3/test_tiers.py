"""What stays of a prompt, where, and how it goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from exl3_requests import answer, greedy, prompt

from exllamav3_adapters.contract import Prefilled, Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from exllamav3_adapters.exl3.engine import Exl3Engine

Load = Callable[..., Awaitable[Exl3Engine]]
PAGE = 256
SYSMEM = MemoryOptions(sysmem_kv_cache=64)


def disk(folder: Path) -> MemoryOptions:
    return MemoryOptions(sysmem_kv_cache=64, disk_cache_dir=str(folder))


async def fill_cache(engine: Exl3Engine) -> None:
    """Takes every page of the cache for other prompts."""
    for seed in range(100, 104):
        await answer(engine.generate(prompt(15 * PAGE + 10, seed=seed), greedy(1)))


async def cached_tokens(engine: Exl3Engine, wanted: Prompt, **options: Any) -> int:
    _, finished = await answer(engine.generate(wanted, greedy(1), **options))
    return finished.cached_tokens


async def prefilled(engine: Exl3Engine, wanted: Prompt, *, pin: bool = False) -> Prefilled:
    events = [event async for event in engine.prefill(wanted, pin=pin)]
    assert isinstance(events[-1], Prefilled)
    return events[-1]


def files_with(folder: Path, wanted: Prompt) -> list[Path]:
    """Files that hold the prompt's first tokens, as the disk tier writes them (64-bit little-endian)."""
    needle = b"".join(token.to_bytes(8, "little") for token in wanted.token_ids[:16])
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


async def test_an_evicted_prompt_comes_back_from_system_memory(load: Load) -> None:
    engine = await load(SYSMEM)
    wanted = prompt(3 * PAGE + 40)
    await answer(engine.generate(wanted, greedy(1)))
    await fill_cache(engine)
    assert await cached_tokens(engine, wanted) >= 3 * PAGE


async def test_the_folder_on_disk_is_for_its_owner_alone(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await load(disk(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert "may be entered by other users" not in caplog.text
    (tmp_path / "shared").mkdir(mode=0o755)
    await load(disk(tmp_path / "shared"))
    assert "may be entered by other users" in caplog.text


async def test_a_prompt_on_disk_is_warm_for_the_next_engine(load: Load, tmp_path: Path) -> None:
    first = await load(disk(tmp_path))
    wanted = prompt(3 * PAGE + 40)
    text, _ = await answer(first.generate(wanted, greedy(8)))
    await first.close()
    second = await load(disk(tmp_path))
    again, finished = await answer(second.generate(wanted, greedy(8)))
    assert finished.cached_tokens >= 3 * PAGE
    assert again == text


async def test_a_request_that_is_not_retained_leaves_nothing_on_disk(load: Load, tmp_path: Path) -> None:
    engine = await load(disk(tmp_path))
    kept, private = prompt(3 * PAGE + 40, seed=1), prompt(3 * PAGE + 40, seed=2)
    await answer(engine.generate(kept, greedy(1)))
    await answer(engine.generate(private, greedy(300), retain=False))
    await fill_cache(engine)
    assert await cached_tokens(engine, private, retain=False) >= 3 * PAGE
    await engine.close()
    assert files_with(tmp_path, kept)
    assert not files_with(tmp_path, private)


async def test_a_retained_prompt_stays_on_disk_although_a_private_request_shares_it(load: Load, tmp_path: Path) -> None:
    engine = await load(disk(tmp_path))
    shared = prompt(3 * PAGE + 40)
    await answer(engine.generate(shared, greedy(1)))
    await answer(engine.generate(shared, greedy(1), retain=False))
    await engine.close()
    assert files_with(tmp_path, shared)


async def test_a_forgotten_prompt_is_cold_in_every_tier(load: Load, tmp_path: Path) -> None:
    engine = await load(disk(tmp_path))
    wanted, other = prompt(3 * PAGE + 40, seed=1), prompt(3 * PAGE + 40, seed=2)
    for one in (wanted, other):
        await answer(engine.generate(one, greedy(1)))
    await fill_cache(engine)
    assert files_with(tmp_path, wanted)
    assert await engine.forget(wanted) >= 3
    assert not files_with(tmp_path, wanted)
    assert await cached_tokens(engine, wanted) < PAGE
    assert await cached_tokens(engine, other) >= 3 * PAGE


async def test_forgetting_takes_what_followed_the_prompt_along(load: Load) -> None:
    engine = await load(SYSMEM)
    conversation = prompt(5 * PAGE)
    await answer(engine.generate(conversation, greedy(1)))
    assert await engine.forget(Prompt(token_ids=conversation.token_ids[: 2 * PAGE + 10])) >= 5
    assert await cached_tokens(engine, conversation) < PAGE


@pytest.mark.parametrize("num_tokens", [20, PAGE - 1])
async def test_a_prompt_shorter_than_a_page_is_forgotten_on_disk_too(
    load: Load, tmp_path: Path, num_tokens: int
) -> None:
    engine = await load(disk(tmp_path))
    conversation = prompt(2 * PAGE + 1)
    await answer(engine.generate(conversation, greedy(1)))
    await fill_cache(engine)
    await engine.forget(Prompt(token_ids=conversation.token_ids[:num_tokens]))
    assert not files_with(tmp_path, conversation)


async def test_a_prompt_shorter_than_a_page_is_forgotten_after_its_page_came_back_from_disk(
    load: Load, tmp_path: Path
) -> None:
    first = await load(disk(tmp_path))
    conversation = prompt(2 * PAGE + 1)
    await answer(first.generate(conversation, greedy(1)))
    await first.close()
    second = await load(disk(tmp_path))
    assert await cached_tokens(second, conversation) >= 2 * PAGE
    await second.forget(Prompt(token_ids=conversation.token_ids[:20]))
    assert not files_with(tmp_path, conversation)
    assert await cached_tokens(second, conversation) < 20


async def test_what_a_running_request_holds_is_forgotten_when_it_ends(load: Load) -> None:
    engine = await load()
    wanted = prompt(2 * PAGE + 10)
    running = engine.generate(wanted, greedy(100))
    await anext(running)
    await engine.forget(wanted)
    await answer(running)
    assert await cached_tokens(engine, wanted) < PAGE


async def test_a_pinned_prompt_outlives_pressure_and_an_unpinned_one_does_not(load: Load) -> None:
    engine = await load()
    pinned, loose = prompt(2 * PAGE + 100, seed=1), prompt(2 * PAGE + 100, seed=2)
    assert (await prefilled(engine, pinned, pin=True)).pinned_tokens == 2 * PAGE + 100
    await prefilled(engine, loose)
    for seed in range(100, 104):
        await answer(engine.generate(prompt(10 * PAGE, seed=seed), greedy(1)))
    assert await cached_tokens(engine, pinned) >= 2 * PAGE + 98
    assert await cached_tokens(engine, loose) < PAGE
    await engine.unpin(pinned)
    await fill_cache(engine)
    assert await cached_tokens(engine, pinned) < PAGE


async def test_a_request_that_needs_the_whole_cache_runs_beside_pins(load: Load) -> None:
    engine = await load()
    await prefilled(engine, prompt(2 * PAGE), pin=True)
    _, finished = await answer(engine.generate(prompt(15 * PAGE + 200, seed=9), greedy(1)))
    assert finished.completion_tokens == 1


@pytest.mark.parametrize("aging", [False, True])
async def test_requests_together_wait_for_each_other_rather_than_take_pins(load: Load, aging: bool) -> None:
    engine = await load(MemoryOptions(aging_lfu=aging))
    pinned = prompt(8 * PAGE)
    await prefilled(engine, pinned, pin=True)
    prompts = [prompt(5 * PAGE + 100, seed=seed) for seed in (1, 2, 3)]
    answers = await asyncio.gather(*(answer(engine.generate(wanted, greedy(5))) for wanted in prompts))
    assert all(finished.completion_tokens == 5 for _, finished in answers)
    assert (await engine.stats()).cache_tokens_pinned == 8 * PAGE


async def test_a_request_that_begins_with_a_pin_runs_beside_others(load: Load) -> None:
    """Its pinned pages are withheld from the others, not from itself."""
    engine = await load()
    pinned = prompt(8 * PAGE)
    await prefilled(engine, pinned, pin=True)
    slow = engine.generate(prompt(PAGE, seed=1), greedy(200))
    await anext(slow)
    wanted = Prompt(token_ids=(*pinned.token_ids, *prompt(PAGE, seed=2).token_ids))
    _, finished = await answer(engine.generate(wanted, greedy(1)))
    assert finished.cached_tokens == 8 * PAGE
    assert (await engine.stats()).active_requests == 1
    await slow.aclose()


async def test_no_more_is_pinned_than_allowed(load: Load) -> None:
    engine = await load(MemoryOptions(pin_max_fraction=0.25))
    assert (await prefilled(engine, prompt(6 * PAGE), pin=True)).pinned_tokens == 4 * PAGE
    assert (await engine.stats()).cache_tokens_pinned == 4 * PAGE


async def test_a_prefill_that_yielded_counts_only_what_was_there_before_as_cached(load: Load) -> None:
    engine = await load()
    wanted = prompt(8 * PAGE + 30)
    await prefilled(engine, Prompt(token_ids=wanted.token_ids[:PAGE]))
    stream = engine.prefill(wanted)
    await anext(stream)
    await anext(stream)
    await answer(engine.generate(prompt(50, seed=3), greedy(2)))
    events = [event async for event in stream]
    assert isinstance(events[-1], Prefilled)
    assert (await engine.stats()).counters["prefill_yields"] == 1
    assert events[-1].cached_tokens == pytest.approx(PAGE, abs=2)
