"""Queues, limits, clients that leave and engines that die, with a model that takes its time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import httpx
import pytest
from proxy_process import MOCK_ANSWER, Proxy

PAGES = "word " * 1200
"""24 pages: 1.2 s until its first token, and then a token every 20 ms."""


class Slow:
    """A client of the slow model. Each prompt is a new one, so that no request is quick by its cache."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._num_prompts = 0

    def body(self, answer_tokens: int, prompt: str = "", **fields: Any) -> dict[str, Any]:
        self._num_prompts += 1
        content = f"{time.monotonic()} {self._num_prompts}\n{prompt}\nsay: {'x' * answer_tokens}"
        return {"model": "slow", "messages": [{"role": "user", "content": content}], **fields}

    async def post(
        self, body: dict[str, Any], headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
    ) -> httpx.Response:
        headers = {**self.proxy.headers, **(headers or {})}
        async with httpx.AsyncClient(timeout=30) as client:
            return await client.post(f"{self.proxy.base_url}{path}", json=body, headers=headers)

    def is_idle(self) -> bool:
        stats = self.proxy.stats("slow")
        engine = stats["engine"] or {"active_requests": 1}
        return not (stats["requests_waiting"] or stats["requests_active"] or engine["active_requests"])

    async def wait_idle(self, seconds: float = 5) -> float:
        return await asyncio.to_thread(self.proxy.wait_until, self.is_idle, seconds, "the engine to be idle")

    async def wait_stats(self, seconds: float = 5, **wanted: int) -> None:
        def holds() -> bool:
            stats = self.proxy.stats("slow")
            return all(stats[name] == value for name, value in wanted.items())

        await asyncio.to_thread(self.proxy.wait_until, holds, seconds, f"{wanted}")

    async def wait_tokens(self, count: float) -> None:
        def holds() -> bool:
            return self.proxy.counter("slow", "completion_tokens") >= count

        await asyncio.to_thread(self.proxy.wait_until, holds, 5, f"{count:g} tokens")


@pytest.fixture
async def slow(slow_proxy: Proxy) -> Slow:
    slow = Slow(slow_proxy)
    await slow.wait_idle()
    return slow


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("answering", [False, True], ids=["before the first token", "during the answer"])
async def test_a_client_that_leaves_frees_the_engine(slow: Slow, stream: bool, answering: bool) -> None:
    before = slow.proxy.counter("slow", "completion_tokens")
    request = asyncio.create_task(slow.post(slow.body(300, PAGES, stream=stream)))
    await slow.wait_stats(requests_active=1)
    if answering:
        await slow.wait_tokens(before + 1)
    request.cancel()
    assert await slow.wait_idle() < 1
    assert slow.proxy.counter("slow", "completion_tokens") < before + 300


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_request_that_takes_too_long_gets_408_once(slow: Slow, stream: bool) -> None:
    before = slow.proxy.counter("slow", "requests")
    began = time.monotonic()
    answer = await slow.post(slow.body(10, PAGES, stream=stream), {"x-litellm-timeout": "0.6"})
    assert answer.status_code == 408, answer.text
    assert "0.6 s" in answer.json()["error"]["message"]
    assert 0.5 < time.monotonic() - began < 2
    assert await slow.wait_idle() < 1
    assert slow.proxy.counter("slow", "requests") <= before + 1


async def test_a_stream_that_takes_too_long_ends_with_an_error(slow: Slow) -> None:
    answer = await slow.post(slow.body(300, stream=True), {"x-litellm-timeout": "1"})
    assert answer.status_code == 200
    assert '"content":"x' in answer.text
    assert "Timeout" in answer.text
    assert "Traceback" not in answer.text
    assert await slow.wait_idle() < 1


async def test_a_full_queue_is_429_with_retry_after_on_every_route(slow: Slow) -> None:
    running = [asyncio.create_task(slow.post(slow.body(120)))]
    await slow.wait_stats(requests_active=1)
    running += [asyncio.create_task(slow.post(slow.body(1))) for _ in range(2)]
    await slow.wait_stats(requests_waiting=2)
    for stream in (False, True):
        message = slow.body(1, max_tokens=9, stream=stream)
        response = {"model": "slow", "input": "hi", "stream": stream}
        bodies = {"/v1/chat/completions": message, "/v1/messages": message, "/v1/responses": response}
        for path, body in bodies.items():
            began = time.monotonic()
            refused = await slow.post(body, path=path)
            assert time.monotonic() - began < 1  # LiteLLM waits as long as retry-after says before it tries again
            assert refused.status_code == 429, f"{path} {refused.text}"
            assert int(refused.headers["retry-after"]) >= 1, path
            assert "max_queue: 2" in refused.json()["error"]["message"]
    assert [answer.status_code for answer in await asyncio.gather(*running)] == [200] * 3


async def test_requests_that_wait_are_answered_in_turn(slow: Slow) -> None:
    bodies = [slow.body(20) for _ in range(2)]
    assert {answer.status_code for answer in await asyncio.gather(*map(slow.post, bodies))} == {200}


async def test_a_killed_engine_fails_its_requests_and_comes_back(slow: Slow) -> None:
    running = [asyncio.create_task(slow.post(slow.body(300, stream=stream))) for stream in (False, True)]
    await slow.wait_stats(requests_active=1, requests_waiting=1)
    mock = asyncio.create_task(slow.post({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}))
    (engine,) = slow.proxy.engines()
    os.kill(engine.pid, signal.SIGKILL)
    began = time.monotonic()
    answers = await asyncio.gather(*running)
    assert time.monotonic() - began < 2
    for answer in answers:
        # The one whose answer had begun to stream can only say so in the stream.
        assert answer.status_code == 503 or (answer.status_code == 200 and "ServiceUnavailable" in answer.text)
        assert "Traceback" not in answer.text
    assert any(answer.status_code == 503 for answer in answers)
    assert (await mock).json()["choices"][0]["message"]["content"] == MOCK_ANSWER
    back = await slow.post(slow.body(2))
    assert back.status_code == 200
    assert back.json()["choices"][0]["message"]["content"] == "xx"
    assert slow.proxy.stats("slow")["loads"] == 2
