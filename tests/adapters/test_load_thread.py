"""A load runs on a thread of its own and can be stopped at its reports."""

from __future__ import annotations

import asyncio
import threading

import pytest

from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.fake import FakeEngine
from exllamav3_adapters.load_thread import LoadStopped, Report, load_on_thread

SETTINGS = EngineSettings(model_key="m", model=ModelOptions(model_dir="demo"))
STEP = LoadProgress(stage="loading", done=0, total=2)


async def fake() -> Engine:
    return await FakeEngine.load(SETTINGS, lambda progress: None)


async def test_reports_arrive_on_the_loop_and_the_engine_is_returned() -> None:
    engine, seen = await fake(), []

    def load(report: Report) -> Engine:
        assert threading.current_thread() is not threading.main_thread()
        report(STEP)
        return engine

    assert await load_on_thread(load, lambda progress: seen.append((progress, threading.current_thread()))) is engine
    assert seen == [(STEP, threading.main_thread())]
    await engine.close()


async def test_a_cancelled_load_stops_at_its_next_report_and_has_cleaned_up_when_the_cancellation_arrives() -> None:
    loading, may_go_on = asyncio.Event(), threading.Event()
    loop, freed = asyncio.get_running_loop(), []

    def load(report: Report) -> Engine:
        loop.call_soon_threadsafe(loading.set)
        may_go_on.wait(5)
        try:
            report(STEP)
        except LoadStopped:
            freed.append(True)
            raise
        raise AssertionError("the report did not stop the load")

    task = asyncio.create_task(load_on_thread(load, lambda progress: None))
    await loading.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert freed == [True]


async def test_an_engine_that_was_loaded_after_its_cancellation_is_closed() -> None:
    engine, loading, may_go_on = await fake(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load(report: Report) -> Engine:
        loop.call_soon_threadsafe(loading.set)
        may_go_on.wait(5)
        return engine

    task = asyncio.create_task(load_on_thread(load, lambda progress: None))
    await loading.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(Exception, match="closed"):
        await engine.stats()
