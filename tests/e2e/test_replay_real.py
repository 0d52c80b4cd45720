"""Replay into a real engine: what a restart brings back, how it behaves beside requests, and when things die."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from demo_chats import CHUNK_TOKENS, Answer, Chats, local, new_head, rendered_head, settled, token_ids
from proxy_process import Proxy, config

pytestmark = [pytest.mark.model, pytest.mark.full, pytest.mark.timeout(600)]

STOP = {"GRACEFUL_SHUTDOWN_TIMEOUT": "2"}
"""Seconds that LiteLLM lets open streams run on; by default 30."""


@asynccontextmanager
async def running(folder: Path, model: dict[str, Any]) -> AsyncIterator[Chats]:
    """One life of a proxy over the state in `folder`."""
    proxy = Proxy(folder, config({"local": model}), STOP)
    try:
        await asyncio.to_thread(proxy.start)
        await settled(proxy)
        async with Chats(proxy) as chats:
            yield chats
    finally:
        proxy.clean_up()


async def test_a_captured_head_is_warm_after_a_restart_and_cold_without_replay(tmp_path: Path) -> None:
    """The second of its three lives ends by SIGKILL in the middle of a prefill, and the third needs its store."""
    head = new_head(1200)
    head_tokens = len(token_ids(rendered_head(head)))
    async with running(tmp_path, local()) as chats:
        cold = await chats.ask(head, "Where is the lamp?")
        warm = await chats.ask(head, "Where is the chair?")
        assert chats.proxy.stats()["capture"]["models"]["local"]["captured"] == 1
        await asyncio.to_thread(chats.proxy.terminate)
        assert chats.proxy.left_behind() == []
    assert cold.cached_tokens <= 0.05 * head_tokens
    assert warm.cached_tokens >= 0.9 * head_tokens

    async with running(tmp_path, local(replay=False)) as chats:
        without = await chats.ask(head, "Where is the lamp?")
        request = asyncio.create_task(chats.ask(new_head(4000)))
        await chats.prefilling()
        await asyncio.to_thread(chats.proxy.kill)
        await engines_gone(chats.proxy, 3)
        with pytest.raises(openai.APIError):
            await request
    assert without.cached_tokens <= 0.05 * head_tokens
    assert without.text == cold.text

    async with running(tmp_path, local()) as chats:
        replay = await chats.replayed()
        replayed = await chats.ask(head, "Where is the lamp?")
    assert replay["items_total"] == 1
    assert_complete(replay, head_tokens)
    assert replayed.cached_tokens >= 0.9 * head_tokens
    assert replayed.text == cold.text
    assert replayed.seconds < 0.6 * without.seconds


async def engines_gone(proxy: Proxy, seconds: float) -> None:
    """Not `Proxy.wait_until`, which gives up where the proxy itself has ended."""
    deadline = time.monotonic() + seconds
    while left := await asyncio.to_thread(proxy.engines):
        assert time.monotonic() < deadline, f"{left} outlived their proxy by {seconds:g} s"
        await asyncio.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """A proxy with a prefix of each configured kind, the second of them long, and what it was asked first."""

    proxy: Proxy
    heads: tuple[str, str, str]
    head_tokens: int
    first: Answer
    """Sent before the model was there, so that replay began beside it."""
    replay_then: dict[str, Any]
    """The replay when that answer had come."""


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warmed]:
    heads = new_head(700), new_head(4000), new_head(700)
    model = local(
        memory={
            "warm_prefix_token_ids": [token_ids(rendered_head(heads[0]))],
            "warm_prefixes": [rendered_head(heads[1])],
            "warm_prompts": [{"messages": [{"role": "system", "content": heads[2]}]}],
        },
        # So long that, after a head was captured, only a stop writes the counts.
        capture={"flush_seconds": 600},
    )
    model["model"]["max_batch_size"] = 3
    proxy = Proxy(tmp_path_factory.mktemp("warmed"), config({"local": model}), STOP)
    try:
        proxy.start()
        proxy.warm_up()
        first, replay_then = asyncio.run(_first_request(proxy))
        head_tokens = sum(len(token_ids(rendered_head(head))) for head in heads)
        yield Warmed(proxy=proxy, heads=heads, head_tokens=head_tokens, first=first, replay_then=replay_then)
    finally:
        proxy.clean_up()


async def _first_request(proxy: Proxy) -> tuple[Answer, dict[str, Any]]:
    async with Chats(proxy) as chats:
        assert (await chats.stats())["state"] == "loading"
        answer = await chats.ask(new_head(500))
        replay: dict[str, Any] = (await chats.stats())["replay"]
        return answer, replay


@pytest.fixture
async def chats(warmed: Warmed) -> AsyncIterator[Chats]:
    async with Chats(warmed.proxy) as chats:
        yield chats


async def test_a_replay_that_begins_beside_a_request_waits_for_it(warmed: Warmed, chats: Chats) -> None:
    assert warmed.first.completion_tokens == 16
    # It was nearly alone in the engine: replay got no further than the chunk it was in.
    assert warmed.replay_then["state"] != "done"
    assert warmed.replay_then["tokens_done"] <= 2 * CHUNK_TOKENS
    assert_complete(await chats.replayed(), warmed.head_tokens)


async def test_every_kind_of_configured_prefix_is_hit(warmed: Warmed, chats: Chats) -> None:
    replay = await chats.replayed()
    assert replay["items_total"] == 3
    assert replay["tokens_pinned"] >= warmed.head_tokens - 3 * CHUNK_TOKENS
    assert replay["tokens_not_pinned"] == 0
    for head in warmed.heads:
        await assert_hit(chats, head)


async def test_a_killed_engine_fails_its_requests_and_returns_with_its_warm_prefixes(
    warmed: Warmed, chats: Chats
) -> None:
    await chats.replayed()
    chunk_seconds = await chats.chunk_seconds()
    alone = await chats.ask(new_head(300))
    loads = (await chats.stats())["loads"]
    mock = asyncio.create_task(_ask_the_mock(chats))

    requests = [asyncio.create_task(endless(chats))]
    requests += [asyncio.create_task(chats.ask(new_head(1500), stream=stream)) for stream in (False, True, False, True)]
    await chats.until(lambda stats: stats["requests_active"] == 3, 60, "three requests to be active")
    assert (await chats.stats())["requests_waiting"] == 2
    kill_engine(warmed.proxy)
    killed = time.monotonic()
    done, pending = await asyncio.wait(requests, timeout=2)
    assert not pending, f"{len(pending)} requests still wait {time.monotonic() - killed:.1f} s after the engine's end"
    for request in done:
        assert_unavailable(request)

    await chats.until(lambda stats: stats["loads"] == loads + 1, 60, "the engine to be loaded again")
    await chats.ready()
    await chats.replaying(1000)
    during = await chats.ask(new_head(300))
    replay = (await chats.stats())["replay"]
    assert replay["state"] == "prefilling", "the replay was over before the request that it must not delay"
    assert during.seconds < 1.5 * alone.seconds + 2 * chunk_seconds
    assert_complete(await chats.replayed(), warmed.head_tokens)
    assert warmed.proxy.counter("local", "prefill_yields") >= 1
    for head in warmed.heads:
        await assert_hit(chats, head)
    mock.cancel()
    (outcome,) = await asyncio.gather(mock, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError), outcome


async def endless(chats: Chats) -> Answer:
    """A stream that does not end by itself within the test."""
    return await chats.ask(new_head(400), max_tokens=4000, stream=True, extra_body={"min_tokens": 4000})


async def _ask_the_mock(chats: Chats) -> None:
    """Until it is cancelled, or the mock provider fails or is slow."""
    while True:
        assert await chats.mock() < 2
        await asyncio.sleep(0.1)


async def test_a_signal_in_the_middle_of_everything_leaves_the_counts_and_no_process(
    warmed: Warmed, chats: Chats
) -> None:
    loads = (await chats.stats())["loads"]
    kill_engine(warmed.proxy)
    await chats.until(lambda stats: stats["loads"] > loads, 60, "the engine to be loaded again")
    await chats.ready()
    await chats.replaying(1000)
    answer = asyncio.create_task(endless(chats))
    await chats.until(lambda stats: stats["requests_active"] == 1, 60, "the answer to begin")
    stats = warmed.proxy.stats()
    assert stats["models"]["local"]["replay"]["state"] == "prefilling"
    tracked = stats["capture"]["models"]["local"]["tracked"]
    assert num_credits(warmed.proxy) < tracked, "the counts are written already, and the stop has nothing to do"

    began = time.monotonic()
    await asyncio.to_thread(warmed.proxy.terminate)
    assert time.monotonic() - began < 15
    assert warmed.proxy.left_behind() == []
    assert num_credits(warmed.proxy) == tracked
    await asyncio.wait([answer], timeout=5)
    assert answer.done()


def kill_engine(proxy: Proxy) -> None:
    (engine,) = proxy.engines()
    os.kill(engine.pid, signal.SIGKILL)


def num_credits(proxy: Proxy) -> int:
    """Heads whose counts are in the store's file."""
    with sqlite3.connect(f"file:{proxy.folder}/state/prefixes.db?mode=ro", uri=True) as file:
        (found,) = file.execute("select count(*) from credits").fetchone()
    return int(found)


async def assert_hit(chats: Chats, head: str) -> None:
    answer = await chats.ask(head, max_tokens=1)
    assert answer.cached_tokens >= 0.9 * len(token_ids(rendered_head(head)))


def assert_complete(replay: dict[str, Any], num_tokens: int) -> None:
    assert replay["items_done"] == replay["items_total"]
    assert replay["items_skipped"] == replay["tokens_skipped"] == 0
    assert replay["tokens_warmed"] + replay["tokens_cached"] == replay["tokens_done"] == replay["tokens_total"]
    # A head may end some tokens into what the template puts before the user's words.
    assert num_tokens <= replay["tokens_total"] <= num_tokens + 4


def assert_unavailable(request: asyncio.Task[Answer]) -> None:
    """503 with a reason; in the stream where that had begun."""
    error = request.exception()
    assert isinstance(error, openai.APIError), error or request.result()
    if isinstance(error, openai.APIStatusError):
        assert error.status_code == 503
    assert "SIGKILL" in error.message
