"""`memory.aging_capture_prefixes` in an engine, beyond what every engine promises."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from exl3_requests import answer, greedy, prompt

from exllamav3_adapters.contract import Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.exl3.page_chain import page_hashes

Load = Callable[..., Awaitable[Exl3Engine]]
PAGE = 256


def capturing(**changes: Any) -> MemoryOptions:
    options: dict[str, Any] = {"aging_lfu": True, "aging_capture_prefixes": True, "aging_prefix_min_tokens": PAGE}
    return MemoryOptions(**(options | changes))


def after(head: Prompt, seed: int, num_tokens: int = 300) -> Prompt:
    source = random.Random(seed)
    return Prompt(token_ids=(*head.token_ids, *(source.randrange(3, 259) for _ in range(num_tokens))))


async def make_hot(engine: Exl3Engine, head: Prompt, first_seed: int = 0, times: int = 3) -> None:
    for seed in range(first_seed, first_seed + times):
        await answer(engine.generate(after(head, seed), greedy(1)))


async def test_its_name_is_the_hash_of_its_last_page_and_its_credit_that_of_the_page(load: Load) -> None:
    engine = await load(capturing())
    head = prompt(2 * PAGE)
    await make_hot(engine, head)
    (prefix,) = await engine.stored_prefixes()
    assert prefix.digest == page_hashes(head.token_ids)[-1].hex()
    assert 1.9 < prefix.credit <= 2.0
    assert (await engine.stats()).counters["captured_prefixes"] == 1


async def test_two_requests_on_one_head_may_be_chance(load: Load) -> None:
    engine = await load(capturing())
    await make_hot(engine, prompt(2 * PAGE), times=2)
    assert await engine.stored_prefixes() == ()


async def test_heads_that_differ_only_at_their_end_are_captured_to_what_they_share(load: Load) -> None:
    engine = await load(capturing())
    shared = prompt(3 * PAGE)
    for seed in range(3):
        await answer(engine.generate(after(after(shared, seed, 30), 100 + seed), greedy(1)))
    (prefix,) = await engine.stored_prefixes()
    assert prefix.token_ids == shared.token_ids


async def test_a_longer_shared_head_replaces_its_beginning(load: Load) -> None:
    engine = await load(capturing())
    short = prompt(PAGE)
    await make_hot(engine, short)
    long = after(short, 50, PAGE)
    await make_hot(engine, long, first_seed=10)
    (prefix,) = await engine.stored_prefixes()
    assert prefix.token_ids == long.token_ids


async def test_a_longer_one_than_the_longest_is_cut_at_a_page(load: Load) -> None:
    engine = await load(capturing(aging_prefix_max_tokens=2 * PAGE + 100))
    head = prompt(4 * PAGE)
    await make_hot(engine, head)
    (prefix,) = await engine.stored_prefixes()
    assert prefix.token_ids == head.token_ids[: 2 * PAGE]


async def test_no_more_are_kept_than_allowed(load: Load) -> None:
    engine = await load(capturing(aging_prefix_max_entries=2))
    heads = [prompt(PAGE, seed=seed) for seed in range(3)]
    for head in heads:
        await make_hot(engine, head)
    assert [one.token_ids for one in await engine.stored_prefixes()] == [heads[2].token_ids, heads[1].token_ids]


async def test_turns_of_one_conversation_are_not_captured(load: Load) -> None:
    engine = await load(capturing())
    conversation = prompt(2 * PAGE)
    for turn in range(5):
        await answer(engine.generate(conversation, greedy(1)))
        conversation = after(conversation, turn)
    assert await engine.stored_prefixes() == ()


async def test_a_long_answer_captures_nothing_of_itself(load: Load) -> None:
    engine = await load(capturing())
    for _ in range(3):
        await answer(engine.generate(prompt(PAGE + 20), greedy(400, min_tokens=400)))
    (prefix,) = await engine.stored_prefixes()
    assert prefix.token_ids == prompt(PAGE + 20).token_ids[:PAGE]


async def test_a_weight_cap_below_the_threshold_does_not_end_capture(load: Load) -> None:
    engine = await load(capturing(aging_weight_cap=1.0))
    await make_hot(engine, prompt(2 * PAGE))
    assert len(await engine.stored_prefixes()) == 1


@pytest.mark.parametrize("num_tokens", [20, PAGE + 10, 2 * PAGE])
async def test_a_forgotten_prompt_is_captured_no_more(load: Load, num_tokens: int) -> None:
    engine = await load(capturing())
    head, other = prompt(2 * PAGE), prompt(2 * PAGE, seed=1)
    await make_hot(engine, head)
    await make_hot(engine, other)
    await engine.forget(Prompt(token_ids=head.token_ids[:num_tokens]))
    assert [one.token_ids for one in await engine.stored_prefixes()] == [other.token_ids]


async def test_without_the_policy_nothing_is_captured(load: Load) -> None:
    engine = await load(capturing(aging_lfu=False))
    await make_hot(engine, prompt(2 * PAGE))
    assert await engine.stored_prefixes() == ()
