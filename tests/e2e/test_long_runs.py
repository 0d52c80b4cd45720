"""Hours of trouble in minutes: a proxy that is killed again and again, and hundreds of generated requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import sqlite3
from pathlib import Path

import pytest
from demo_chats import WORDS, Answer, Chats, cancelled, local, new_head, rendered_head, settled, token_ids
from proxy_process import Proxy, config

pytestmark = [pytest.mark.model, pytest.mark.full, pytest.mark.timeout(2400)]

NUM_KILLS = 10
MOST_TRAFFIC_SECONDS = 8.0
NUM_REQUESTS = 240
NUM_AT_ONCE = 6
NUM_ASKED_AGAIN = 40


@pytest.fixture
def chance(capsys: pytest.CaptureFixture[str]) -> random.Random:
    """Its seed is in the output, also of a test that passes."""
    seed = secrets.randbits(32)
    with capsys.disabled():
        print(f" seed {seed}", end="", flush=True)  # noqa: T201
    return random.Random(seed)


async def test_ten_kills_during_traffic_damage_nothing(tmp_path: Path, chance: random.Random) -> None:
    head = new_head(1000)
    head_tokens = len(token_ids(rendered_head(head)))
    cold = ""
    for life in range(NUM_KILLS + 1):
        proxy = Proxy(tmp_path, config({"local": local()}))
        try:
            await asyncio.to_thread(proxy.start)
            await settled(proxy)
            async with Chats(proxy) as chats:
                if life == 0:
                    cold = (await chats.ask(head)).text
                    await chats.ask(head, "Where is the chair?")
                    await asyncio.to_thread(
                        proxy.wait_until, lambda: head in stored_heads(tmp_path), 10, "the head to be in the store"
                    )
                else:
                    replay = await chats.replayed()
                    assert replay["tokens_total"] >= head_tokens
                    again = await chats.ask(head)
                    assert again.cached_tokens >= 0.9 * head_tokens
                    assert again.text == cold
                if life < NUM_KILLS:
                    await kill_during_traffic(chats, head, chance)
        finally:
            proxy.clean_up()
        assert head in stored_heads(tmp_path)
    assert list((tmp_path / "state").glob("*.damaged-*")) == []


def stored_heads(folder: Path) -> str:
    """The content of every head in the store, which is sound."""
    with contextlib.closing(sqlite3.connect(f"file:{folder}/state/prefixes.db?mode=rw", uri=True)) as file:
        assert file.execute("pragma integrity_check").fetchall() == [("ok",)]
        return "\n".join(bytes(content).decode() for (content,) in file.execute("select content from heads"))


async def kill_during_traffic(chats: Chats, head: str, chance: random.Random) -> None:
    traffic = [asyncio.create_task(_talk_on(chats, head, random.Random(chance.random()))) for _ in range(3)]
    await asyncio.sleep(chance.uniform(0, MOST_TRAFFIC_SECONDS))
    assert not any(task.done() for task in traffic)
    await asyncio.to_thread(chats.proxy.kill)
    # Every client hears of it.
    assert all(isinstance(outcome, Exception) for outcome in await asyncio.gather(*traffic, return_exceptions=True))
    for _ in range(60):
        if not await asyncio.to_thread(chats.proxy.engines):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the engine outlived its proxy by 3 s")


async def _talk_on(chats: Chats, head: str, chance: random.Random) -> None:
    """Conversations with a head that is known and with new ones, which are captured meanwhile."""
    while True:
        chosen = head if chance.random() < 0.5 else new_head(chance.randint(50, 900))
        for _ in range(2):
            await chats.ask(
                chosen, new_question(chance), max_tokens=chance.randint(1, 24), stream=chance.random() < 0.5
            )


def new_question(chance: random.Random) -> str:
    return f"What do you know of {' and '.join(chance.sample(WORDS.split(), 3))}?"


async def test_hundreds_of_mixed_requests_leave_nothing_and_answer_as_alone(
    tmp_path: Path, chance: random.Random
) -> None:
    model = local(memory={"sysmem_kv_cache": 128})
    # Room for a few of them at a time, so that they wait for one another and push each other's pages out.
    model["model"] |= {"max_seq_len": 4096, "cache_size": 4096}
    proxy = Proxy(tmp_path, config({"local": model}))
    try:
        await asyncio.to_thread(proxy.start)
        await settled(proxy)
        async with Chats(proxy) as chats:
            heads = [new_head(num_tokens) for num_tokens in (20, 100, 250, 260, 500, 511, 900, 1500)]
            places = asyncio.Semaphore(NUM_AT_ONCE)
            cases = [(chance.choice(heads), new_question(chance), chance.randint(1, 24)) for _ in range(NUM_REQUESTS)]
            answers = await asyncio.gather(
                *(_ask_or_leave(chats, places, case, random.Random(chance.random())) for case in cases)
            )
            await chats.idle()
            engine = (await chats.stats())["engine"]
            assert engine["active_requests"] == engine["queued_requests"] == engine["cache_tokens_used"] == 0
            assert engine["counters"]["failed_jobs"] == 0
            answered = [(case, answer) for case, answer in zip(cases, answers, strict=True) if answer is not None]
            assert len(answered) > NUM_REQUESTS / 2
            for (head, question, max_tokens), answer in chance.sample(answered, NUM_ASKED_AGAIN):
                alone = await chats.ask(head, question, max_tokens=max_tokens)
                assert alone.text == answer.text
                assert (alone.prompt_tokens, alone.completion_tokens, alone.finish_reason) == (
                    answer.prompt_tokens, answer.completion_tokens, answer.finish_reason,
                )  # fmt: skip
            # All of the cache can still be had at once: no page was lost on the way.
            await chats.ask(new_head(3800), max_tokens=8)
            await chats.idle()
    finally:
        proxy.clean_up()


async def _ask_or_leave(
    chats: Chats, places: asyncio.Semaphore, case: tuple[str, str, int], chance: random.Random
) -> Answer | None:
    """One in five leaves before the end, at any moment of it."""
    head, question, max_tokens = case
    async with places:
        request = asyncio.create_task(chats.ask(head, question, max_tokens=max_tokens, stream=chance.random() < 0.5))
        if chance.random() < 0.2:
            await asyncio.wait([request], timeout=chance.uniform(0, 2))
            if not request.done():
                await cancelled(request)
                return None
        return await request
