"""The engine's real process, broken from inside: it says why, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from exl3_requests import answer, greedy, prompt

from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import EngineDied, JobFailed
from exllamav3_adapters.hosted import HostedEngine

BROKEN_ENGINE = Path(__file__).parents[2] / "broken_engine"
ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"

pytestmark = pytest.mark.model  # each test has a process, which imports torch

Break = Callable[[str], None]
Load = Callable[..., Awaitable[HostedEngine]]


@pytest.fixture
def break_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Break:
    order = tmp_path / "order"
    monkeypatch.setenv("PYTHONPATH", str(BROKEN_ENGINE))
    monkeypatch.setenv("BROKEN_ENGINE", str(order))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def write(words: str) -> None:
        whole = tmp_path / "whole"
        whole.write_text(words)
        whole.rename(order)

    return write


@pytest_asyncio.fixture
async def load(tiny_folder: Path, break_engine: Break) -> AsyncIterator[Load]:
    engines: list[HostedEngine] = []

    async def load_engine(**options: Any) -> HostedEngine:
        model = ModelOptions(model_dir=str(tiny_folder), max_seq_len=4096, cache_size=4096, chunk_size=256)
        settings = EngineSettings(model_key="tiny", model=model)
        engines.append(await HostedEngine.load("cpu", settings, lambda progress: None, **options))
        return engines[-1]

    yield load_engine
    for engine in engines:
        await engine.close()
        assert not psutil.pid_exists(engine.pid)


@pytest.mark.parametrize("where", [pytest.param("iterate", marks=pytest.mark.full), "prefill"])
async def test_a_broken_device_ends_the_process_and_all_that_waits_hears_of_it(
    load: Load, break_engine: Break, where: str
) -> None:
    engine = await load()
    streams = [engine.generate(prompt(600, seed=seed), greedy(2000, ignore_eos=True)) for seed in range(3)]
    await anext(streams[0])
    break_engine(f"{where} {ILLEGAL_ACCESS}")
    async with asyncio.timeout(5):
        for stream in streams:
            with pytest.raises(EngineDied, match=f"the engine's device failed \\({ILLEGAL_ACCESS}\\)"):
                await answer(stream)
        with pytest.raises(EngineDied, match=ILLEGAL_ACCESS):
            await engine.tokenize("hello")
        assert ILLEGAL_ACCESS in str(await engine.died())
        while psutil.pid_exists(engine.pid):  # noqa: ASYNC110  the process table has no event
            await asyncio.sleep(0.01)


@pytest.mark.full
async def test_out_of_memory_in_one_prefill_leaves_the_process_and_the_others(load: Load, break_engine: Break) -> None:
    engine = await load()
    neighbour = asyncio.create_task(answer(engine.generate(prompt(40), greedy(300, ignore_eos=True))))
    await asyncio.sleep(0.05)
    break_engine("prefill CUDA out of memory. Tried to allocate 2.00 GiB.")
    failing = engine.generate(prompt(600, seed=1), greedy())
    outcomes = await asyncio.gather(answer(failing), neighbour, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert [type(each) for each in failed] == [JobFailed]
    assert "tried to allocate 2.00 GiB" in str(failed[0])
    assert (await answer(engine.generate(prompt(600, seed=1), greedy())))[1].completion_tokens == 4


@pytest.mark.full
async def test_a_step_that_takes_long_is_no_hang_and_one_without_end_is(load: Load, break_engine: Break) -> None:
    engine = await load(watch_seconds=0.1, silent_seconds=1.5)
    break_engine("sleep 0.7")
    assert (await answer(engine.generate(prompt(40), greedy())))[1].completion_tokens == 4
    break_engine("sleep 60")
    async with asyncio.timeout(5):
        with pytest.raises(EngineDied, match=r"had not answered for 1\.5 s and was killed"):
            await answer(engine.generate(prompt(40), greedy()))


@pytest.mark.parametrize("by_itself", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_what_the_engine_started_ends_with_it(load: Load, break_engine: Break, by_itself: bool) -> None:
    """As the processes of a tensor parallel model, or a compiler."""
    engine = await load()
    break_engine("spawn 600")
    await answer(engine.generate(prompt(40), greedy()))
    (child,) = psutil.Process(engine.pid).children()
    if by_itself:
        os.kill(engine.pid, signal.SIGSEGV)
    else:
        await engine.close()
    assert isinstance(await engine.died(), EngineDied) == by_itself
    await asyncio.to_thread(child.wait, 5)
