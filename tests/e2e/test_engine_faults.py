"""A real engine that fails under twenty streams, three times in a row: clients, health, and what comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from demo_chats import Answer, Chats, local, new_head, rendered_head, settled, token_ids
from proxy_process import Proxy, config

pytestmark = [pytest.mark.model, pytest.mark.full, pytest.mark.timeout(600)]

NUM_STREAMS = 20
ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"
BROKEN_ENGINE = Path(__file__).parents[1] / "broken_engine"


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A proxy whose engine can be told to fail, with a configured prefix and a captured one."""

    proxy: Proxy
    heads: tuple[str, str]

    def order(self, words: str) -> None:
        """See `broken_engine/sitecustomize.py`."""
        whole = self.proxy.folder / "whole"
        whole.write_text(words)
        whole.rename(self.proxy.folder / "order")

    def health(self) -> tuple[list[str], dict[str, str]]:
        """What LiteLLM's own check says: the healthy models, and what is wrong with the others."""
        health = self.proxy.get("/health")
        healthy = [endpoint["model"] for endpoint in health["healthy_endpoints"]]
        return healthy, {endpoint["model"]: endpoint["error"] for endpoint in health["unhealthy_endpoints"]}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    folder = tmp_path_factory.mktemp("broken")
    heads = new_head(700), new_head(700)
    model = local(memory={"warm_prompts": [{"messages": [{"role": "system", "content": heads[0]}]}]})
    environment = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(BROKEN_ENGINE)]),
        "BROKEN_ENGINE": str(folder / "order"),
    }
    proxy = Proxy(folder, config({"local": model}), environment)
    try:
        proxy.start()
        asyncio.run(settled(proxy))
        asyncio.run(_capture(proxy, heads[1]))
        yield Broken(proxy=proxy, heads=heads)
    finally:
        proxy.clean_up()


async def _capture(proxy: Proxy, head: str) -> None:
    async with Chats(proxy) as chats:
        for question in ("Where is the lamp?", "Where is the chair?"):
            await chats.ask(head, question)
    assert proxy.stats()["capture"]["models"]["local"]["captured"] == 1


@pytest.fixture
async def chats(broken: Broken) -> AsyncIterator[Chats]:
    async with Chats(broken.proxy) as chats:
        yield chats


@pytest.mark.parametrize(
    ("how", "reason"),
    [(f"iterate {ILLEGAL_ACCESS}", ILLEGAL_ACCESS), ("kill", "killed by SIGKILL")],
    ids=["a step that raises", "kill -9"],
)
async def test_an_engine_that_fails_under_load_is_replaced_with_its_warm_prefixes(
    broken: Broken, chats: Chats, how: str, reason: str
) -> None:
    await chats.replayed()
    loads = (await chats.stats())["loads"]
    (engine,) = broken.proxy.engines()
    mock = asyncio.create_task(ask_the_mock(chats))
    streams = await under_load(chats)

    fail(broken, how)
    await all_fail(streams, reason)
    healthy, unhealthy = await asyncio.to_thread(broken.health)
    assert healthy == ["openai/mock"]
    assert reason in unhealthy["exllamav3/local"]

    the_next = await chats.ask(new_head(100))
    assert the_next.completion_tokens > 0
    assert (await chats.stats())["loads"] == loads + 1
    replay = await chats.replayed()
    assert (replay["items_total"], replay["items_skipped"]) == (2, 0)
    for head in broken.heads:
        answer = await chats.ask(head, max_tokens=1)
        assert answer.cached_tokens >= 0.9 * len(token_ids(rendered_head(head)))
    assert await asyncio.to_thread(broken.health) == (["exllamav3/local", "openai/mock"], {})
    assert len(broken.proxy.engines()) == 1
    assert not psutil.pid_exists(engine.pid)
    await mock_went_on(mock)


async def test_the_third_failure_in_ten_minutes_is_the_last(broken: Broken, chats: Chats) -> None:
    """One that exllamav3 would have left with its job, with the device broken for all that come after."""
    await chats.replayed()
    mock = asyncio.create_task(ask_the_mock(chats))
    streams = await under_load(chats)
    fail(broken, f"prefill {ILLEGAL_ACCESS}")
    await all_fail(streams, ILLEGAL_ACCESS)
    await asyncio.to_thread(
        broken.proxy.wait_until, lambda: broken.proxy.stats("local")["state"] == "failed", 15, "it to stay down"
    )
    began = time.monotonic()
    with pytest.raises(openai.APIStatusError, match=f"died 3 times within 10 minutes .*{ILLEGAL_ACCESS}") as caught:
        await chats.ask(new_head(100))
    assert caught.value.status_code == 503
    assert time.monotonic() - began < 2
    healthy, unhealthy = await asyncio.to_thread(broken.health)
    assert healthy == ["openai/mock"]
    assert "died 3 times within 10 minutes" in unhealthy["exllamav3/local"]
    assert broken.proxy.engines() == []
    await mock_went_on(mock)

    await asyncio.to_thread(broken.proxy.terminate)
    assert broken.proxy.left_behind() == []
    assert "Traceback" not in "".join(line for line in broken.proxy.log.splitlines() if ILLEGAL_ACCESS in line)


async def under_load(chats: Chats) -> list[asyncio.Task[Answer]]:
    """Twenty streams that do not end by themselves, some of which answer while others wait."""
    streams = [
        asyncio.create_task(chats.ask(new_head(200), stream=True, max_tokens=2000, extra_body={"min_tokens": 2000}))
        for _ in range(NUM_STREAMS)
    ]

    def is_loaded(stats: dict[str, Any]) -> bool:
        num_active: int = stats["requests_active"]
        return num_active >= 3 and num_active + stats["requests_waiting"] == NUM_STREAMS

    await chats.until(is_loaded, 120, "twenty streams to be in the engine")
    return streams


def fail(broken: Broken, how: str) -> None:
    if how != "kill":
        return broken.order(how)
    (engine,) = broken.proxy.engines()
    return os.kill(engine.pid, signal.SIGKILL)


async def all_fail(streams: list[asyncio.Task[Answer]], reason: str) -> None:
    """Each with a 503 and the reason, or so in its stream where that had begun."""
    began = time.monotonic()
    _, pending = await asyncio.wait(streams, timeout=10)
    assert not pending, f"{len(pending)} of {len(streams)} streams still wait {time.monotonic() - began:.1f} s later"
    for stream in streams:
        error = stream.exception()
        assert isinstance(error, openai.APIError), error or stream.result()
        assert not isinstance(error, openai.APIStatusError) or error.status_code == 503
        assert reason in error.message
    assert any(isinstance(stream.exception(), openai.APIStatusError) for stream in streams)
    assert not all(isinstance(stream.exception(), openai.APIStatusError) for stream in streams)


async def ask_the_mock(chats: Chats) -> None:
    """Until it is cancelled, or the mock provider fails or is slow."""
    while True:
        assert await chats.mock() < 3
        await asyncio.sleep(0.1)


async def mock_went_on(mock: asyncio.Task[None]) -> None:
    mock.cancel()
    (outcome,) = await asyncio.gather(mock, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError), outcome
