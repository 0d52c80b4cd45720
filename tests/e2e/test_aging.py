"""Eviction by credit, behind a real proxy: what stays of hot heads when one-off prompts fill the cache."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from demo_chats import Chats, settled
from proxy_process import Proxy, config
from tiny_model import write_tiny_model

import exllamav3_adapters

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

CACHE_TOKENS = 16384
HEAD_TOKENS = (1000, 1500, 2000)
FLOOD_TOKENS = 2000
"""Of each one-off prompt. A token of the tiny model is one byte."""


def text(num_tokens: int, seed: int) -> str:
    source = random.Random(seed)
    return "".join(source.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(num_tokens))


HEADS = [text(num_tokens, seed=num_tokens) for num_tokens in HEAD_TOKENS]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@asynccontextmanager
async def running(folder: Path, model_folder: Path, **memory: Any) -> AsyncIterator[Chats]:
    """One life of a proxy over the state in `folder`, with nothing replayed."""
    template = Path(exllamav3_adapters.__file__).with_name("demo_chat_template.jinja")
    model = {
        "engine": "cpu",
        "replay": False,
        "model": {
            "model_dir": str(model_folder),
            "max_seq_len": 4096,
            "cache_size": CACHE_TOKENS,
            "chat_template": str(template),
        },
        "memory": memory,
    }
    proxy = Proxy(folder, config({"local": model}))
    try:
        await asyncio.to_thread(proxy.start)
        await settled(proxy)
        async with Chats(proxy) as chats:
            yield chats
            await asyncio.to_thread(proxy.terminate)
    finally:
        proxy.clean_up()


async def ask_each(chats: Chats, turn: int) -> list[float]:
    """By head: the part of it that came from the cache."""
    parts = []
    for head, num_tokens in zip(HEADS, HEAD_TOKENS, strict=True):
        answer = await chats.ask(head, text(60, seed=turn), max_tokens=1)
        parts.append(min(1.0, answer.cached_tokens / num_tokens))
    return parts


async def flood(chats: Chats, seeds: Sequence[int]) -> None:
    """One-off prompts, in all twice what the cache holds."""
    assert len(seeds) * FLOOD_TOKENS >= 2 * CACHE_TOKENS
    for seed in seeds:
        await chats.ask(text(FLOOD_TOKENS, seed=seed), "Sum it up.", max_tokens=1)


async def test_hot_heads_outlive_a_flood_and_their_credit_a_restart(tmp_path: Path, model_folder: Path) -> None:
    async with running(tmp_path, model_folder, aging_lfu=True) as chats:
        for turn in range(3):
            await ask_each(chats, turn)
        await flood(chats, range(100, 117))
        assert min(await ask_each(chats, 9)) >= 0.8
        assert chats.proxy.counter("local", "regretted_evictions") == 0

    async with running(tmp_path, model_folder, aging_lfu=True) as chats:
        assert max(await ask_each(chats, 10)) < 0.1, "a new process begins with an empty cache"
        # One request earns nothing: what keeps the heads now was earned before the restart.
        await flood(chats, range(200, 217))
        assert min(await ask_each(chats, 11)) >= 0.8


async def test_without_the_policy_a_flood_takes_them(tmp_path: Path, model_folder: Path) -> None:
    async with running(tmp_path, model_folder, aging_lfu=False) as chats:
        for turn in range(3):
            await ask_each(chats, turn)
        await flood(chats, range(100, 117))
        assert max(await ask_each(chats, 9)) < 0.2
