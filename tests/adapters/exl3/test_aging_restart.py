"""Page credit over the end of an engine: in order, by a kill, with another model, and after a forget."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from exl3_requests import answer, greedy, prompt

from exllamav3_adapters.contract import Engine, Prompt
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.exl3.page_chain import page_hashes
from exllamav3_adapters.hosted import HostedEngine
from exllamav3_adapters.registry import find_engine

Load = Callable[..., Awaitable[Exl3Engine]]
PAGE = 256
HEAD = prompt(2 * PAGE)


def kept_in(folder: Path, **options: float) -> MemoryOptions:
    return MemoryOptions(aging_lfu=True, aging_persist_dir=str(folder), **options)  # type: ignore[arg-type]


def after(head: Prompt, seed: int) -> Prompt:
    source = random.Random(seed)
    return Prompt(token_ids=(*head.token_ids, *(source.randrange(3, 259) for _ in range(300))))


async def make_hot(engine: Engine, head: Prompt = HEAD, *, retain: bool = True) -> None:
    for seed in range(3):
        await answer(engine.generate(after(head, seed), greedy(1), retain=retain))


def weight(engine: Exl3Engine, head: Prompt = HEAD) -> float:
    table = engine._scheduler._generator.pagetable
    return float(table.credit.weight(page_hashes(head.token_ids)[-1], table._clock()))


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*")]


def hashes_in(folder: Path, wanted: Prompt) -> list[bytes]:
    """Pages of the prompt whose hash is in a file of the folder, SQLite's journals included."""
    content = b""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            content += path.read_bytes()
    return [phash for phash in page_hashes(wanted.token_ids) if phash in content]


async def test_credit_is_back_after_a_restart(load: Load, tmp_path: Path) -> None:
    first = await load(kept_in(tmp_path))
    await make_hot(first)
    await first.close()
    second = await load(kept_in(tmp_path))
    assert weight(second) == pytest.approx(2.0, rel=0.02)
    assert (await second.stats()).counters["credit_entries"] == 2
    assert names_in(tmp_path) == ["tiny.credit.db"]


async def test_it_has_decayed_by_the_time_that_passed_with_the_half_life_of_now(load: Load, tmp_path: Path) -> None:
    first = await load(kept_in(tmp_path))
    await make_hot(first)
    await first.close()
    with sqlite3.connect(tmp_path / "tiny.credit.db") as db:
        db.execute("UPDATE credit SET at = at - 7200")
    db.close()
    second = await load(kept_in(tmp_path, aging_half_life_hours=2.0))
    assert weight(second) == pytest.approx(1.0, rel=0.02)


async def test_a_head_with_restored_credit_outlives_a_flood(load: Load, tmp_path: Path) -> None:
    first = await load(kept_in(tmp_path))
    await make_hot(first)
    await first.close()
    second = await load(kept_in(tmp_path))
    await answer(second.generate(after(HEAD, 9), greedy(1)))
    for seed in range(100, 104):
        await answer(second.generate(prompt(10 * PAGE, seed=seed), greedy(1)))
    _, finished = await answer(second.generate(after(HEAD, 10), greedy(1)))
    assert finished.cached_tokens >= 2 * PAGE


async def test_a_prompt_that_is_not_retained_leaves_no_hash_in_the_folder(load: Load, tmp_path: Path) -> None:
    engine = await load(kept_in(tmp_path))
    private = prompt(2 * PAGE, seed=5)
    await make_hot(engine)
    await make_hot(engine, private, retain=False)
    await engine.close()
    assert len(hashes_in(tmp_path, HEAD)) == 2
    assert hashes_in(tmp_path, private) == []


async def test_forgetting_leaves_no_hash_in_the_folder(load: Load, tmp_path: Path) -> None:
    engine = await load(kept_in(tmp_path))
    other = prompt(2 * PAGE, seed=5)
    await make_hot(engine)
    await make_hot(engine, other)
    await engine._scheduler._aging.settle()  # type: ignore[union-attr]
    assert len(hashes_in(tmp_path, HEAD)) == 2
    await engine.forget(Prompt(token_ids=HEAD.token_ids[: PAGE + 10]))
    assert hashes_in(tmp_path, HEAD) == []
    assert len(hashes_in(tmp_path, other)) == 2
    assert weight(engine) == 0.0
    assert weight(engine, other) > 1.9


async def test_a_folder_that_cannot_be_used_costs_no_request(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    engine = await load(kept_in(tmp_path / "file"))
    await make_hot(engine)
    assert weight(engine) > 1.9
    await engine.forget(HEAD)
    assert weight(engine) == 0.0
    assert caplog.text.count("kept in memory only") == 1


async def test_a_model_name_with_a_slash_is_one_file(tiny_folder: Path, tmp_path: Path) -> None:
    settings = EngineSettings(
        model_key="../a/b",
        model=ModelOptions(model_dir=str(tiny_folder), max_seq_len=4096, cache_size=4096, chunk_size=256),
        memory=kept_in(tmp_path / "credit"),
    )
    engine = await find_engine("cpu").load(settings, lambda progress: None)
    await engine.close()
    assert names_in(tmp_path) == ["credit", "..%2Fa%2Fb.credit.db"]


@pytest.mark.full
async def test_credit_is_back_after_a_kill(tiny_folder: Path, tmp_path: Path) -> None:
    """From the moment that a batch was written, which takes a second."""
    settings = EngineSettings(
        model_key="tiny",
        model=ModelOptions(model_dir=str(tiny_folder), max_seq_len=4096, cache_size=4096, chunk_size=256),
        memory=kept_in(tmp_path),
    )
    first = await HostedEngine.load("cpu", settings, lambda progress: None)
    await make_hot(first)
    deadline = time.monotonic() + 10.0
    while not hashes_in(tmp_path, HEAD):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    await first.died()
    second = await HostedEngine.load("cpu", settings, lambda progress: None)
    counters = (await second.stats()).counters
    await second.close()
    assert counters["credit_entries"] == 2
