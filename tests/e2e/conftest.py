"""Proxies that several tests share: starting one takes longer than most tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import anthropic
import openai
import pytest
from demo_chats import local, settled
from proxy_process import FAKE, Proxy, config, openai_client


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy with two fake models at full speed: `tiny`, and `private`, which captures nothing."""
    models = {
        "tiny": {**FAKE, "capture": {"min_conversations": 2, "min_tokens": 64, "flush_seconds": 0.1}},
        "private": {**FAKE, "capture": {"enabled": False}},
    }
    yield from _running(Proxy(tmp_path_factory.mktemp("proxy"), config(models)))


@pytest.fixture(scope="session")
def slow_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy whose fake model takes 50 ms for a page of the prompt and 20 ms for a token, one request at a time."""
    model = {"model_dir": "demo", "max_seq_len": 8192, "chunk_size": 256, "max_batch_size": 1}
    models = {"slow": {"engine": "fake", "model": model, "max_queue": 2}}
    pace = {"EXLLAMAV3_FAKE_SECONDS_PER_PREFILL_PAGE": "0.05", "EXLLAMAV3_FAKE_SECONDS_PER_TOKEN": "0.02"}
    yield from _running(Proxy(tmp_path_factory.mktemp("slow_proxy"), config(models), pace))


@pytest.fixture(scope="session")
def real_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy with real weights, `local` on the CPU. Each test uses heads of its own."""
    proxy = Proxy(tmp_path_factory.mktemp("real"), config({"local": local(capture={"enabled": False})}))
    try:
        proxy.start()
        asyncio.run(settled(proxy))
        yield proxy
    finally:
        proxy.clean_up()


@pytest.fixture
def client(proxy: Proxy) -> openai.OpenAI:
    return openai_client(proxy)


@pytest.fixture
def slow_client(slow_proxy: Proxy) -> openai.OpenAI:
    return openai_client(slow_proxy)


@pytest.fixture
def anthropic_client(proxy: Proxy) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=proxy.base_url, api_key=proxy.master_key, max_retries=0, timeout=30)


def _running(proxy: Proxy) -> Iterator[Proxy]:
    try:
        proxy.start()
        proxy.warm_up()
        yield proxy
    finally:
        proxy.clean_up()
