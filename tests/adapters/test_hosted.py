"""What a process of its own adds to an engine; that it keeps the contract is the conformance suite's to say."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from exllamav3_adapters import hosted
from exllamav3_adapters.contract import Chat, Finished, GenerationParams, Prompt, Started, Text
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import EngineDied, InvalidRequest, LoadFailed
from exllamav3_adapters.hosted import HostedEngine
from exllamav3_adapters.process_options import PROCESS_OPTIONS, ProcessOptions

SETTINGS = EngineSettings(model_key="fake", model=ModelOptions(model_dir="demo", chunk_size=256))
LONG = Prompt(token_ids=tuple(b"z" * 5000))

PARENT = """
import asyncio
from exllamav3_adapters.contract import Prompt
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.hosted import HostedEngine

async def main():
    settings = EngineSettings(model_key="fake", model=ModelOptions(model_dir="demo", chunk_size=256))
    engine = await HostedEngine.load("fake", settings, lambda progress: None)
    stream = engine.prefill(Prompt(token_ids=tuple(b"z" * 5000)))
    await anext(stream)
    print(engine.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def slow_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLLAMAV3_FAKE_SECONDS_PER_PREFILL_PAGE", "0.05")
    monkeypatch.setenv("EXLLAMAV3_FAKE_SECONDS_PER_TOKEN", "0.005")


@pytest.fixture
async def engine() -> AsyncIterator[HostedEngine]:
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None)
    yield engine
    await engine.close()
    assert not psutil.pid_exists(engine.pid)


async def read(stream: Any) -> list[Any]:
    return [event async for event in stream]


def assert_gone(pid: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"process {pid} is still there after {seconds} s"
            time.sleep(0.02)


async def test_what_waits_when_the_process_is_killed_fails_at_once_with_the_reason(engine: HostedEngine) -> None:
    answering = engine.generate(await engine.tokenize("hello"), GenerationParams())
    while not isinstance(await anext(answering), Text):
        pass
    prefilling = engine.prefill(LONG)
    waiting = [asyncio.create_task(read(answering)), asyncio.create_task(read(prefilling))]
    calls = [asyncio.create_task(engine.stats()), asyncio.create_task(engine.died())]
    os.kill(engine.pid, signal.SIGSTOP)
    await asyncio.sleep(0)
    os.kill(engine.pid, signal.SIGKILL)
    async with asyncio.timeout(2):
        outcomes = await asyncio.gather(*waiting, *calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineDied] * 4
    assert all("SIGKILL" in str(outcome) for outcome in outcomes)
    with pytest.raises(EngineDied, match="SIGKILL"):
        await engine.stats()
    with pytest.raises(EngineDied, match="SIGKILL"):
        await read(engine.generate(LONG, GenerationParams()))
    assert not psutil.pid_exists(engine.pid)


async def test_an_exit_is_told_by_its_status(engine: HostedEngine) -> None:
    with pytest.raises(EngineDied, match="exited with status 70"):
        await read(engine.generate(await engine.tokenize("fault: crash"), GenerationParams()))


async def test_a_native_crash_is_told_by_its_signal_and_its_stack_is_logged(
    engine: HostedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="exllamav3_adapters"):
        os.kill(engine.pid, signal.SIGSEGV)
        died = await asyncio.wait_for(engine.died(), 2)
    assert "SIGSEGV" in str(died)
    assert "Segmentation fault" in caplog.text


async def test_a_closed_engine_did_not_die(engine: HostedEngine) -> None:
    await engine.close()
    assert await engine.died() is None
    assert not psutil.pid_exists(engine.pid)


async def test_an_engine_that_does_not_close_is_killed(engine: HostedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "_CLOSE_SECONDS", 0.1)
    os.kill(engine.pid, signal.SIGSTOP)
    await asyncio.wait_for(engine.close(), 2)
    assert not psutil.pid_exists(engine.pid)


async def test_signals_to_stop_are_left_to_the_parent(engine: HostedEngine) -> None:
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    await asyncio.sleep(0.1)
    assert (await engine.stats()).active_requests == 0


async def test_a_request_of_the_wrong_shape_fails_alone(engine: HostedEngine) -> None:
    stream = engine.generate(await engine.tokenize("say: still here"), GenerationParams())
    with pytest.raises(InvalidRequest, match="shape"):
        await engine.render(Chat(messages=["hello"]))  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="shape"):
        await read(engine.prefill(Prompt(token_ids=(-1.5,))))  # type: ignore[arg-type]
    assert isinstance((await read(stream))[-1], Finished)


async def test_a_reader_that_was_held_up_gets_what_it_missed_in_one_piece(engine: HostedEngine) -> None:
    stream = engine.generate(await engine.tokenize(f"say: {'x' * 200}"), GenerationParams())
    while not isinstance(await anext(stream), Text):
        pass
    time.sleep(0.4)  # noqa: ASYNC251  the loop is what is held up
    await asyncio.sleep(0.05)
    missed = await anext(stream)
    assert isinstance(missed, Text)
    assert len(missed.text) >= 10


async def test_cancelling_a_load_ends_its_process_and_with_it_all_that_was_allocated() -> None:
    settings = EngineSettings(model_key="m", model=ModelOptions(model_dir="demo", max_seq_len=512, chunk_size=256))
    has_begun = asyncio.Event()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    load = asyncio.create_task(HostedEngine.load("cpu", settings, lambda progress: has_begun.set()))
    await has_begun.wait()
    (pid,) = {child.pid for child in psutil.Process().children(recursive=True)} - before
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    assert_gone(pid, 1.0)


async def test_a_cancelled_call_leaves_the_engine_as_it_was(engine: HostedEngine) -> None:
    call = asyncio.create_task(engine.stats())
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await engine.stats()).active_requests == 0


async def test_the_process_runs_at_its_engines_priority_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setitem(PROCESS_OPTIONS, "fake", PROCESS_OPTIONS["cpu"])
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None)
    process = psutil.Process(engine.pid)
    assert process.nice() == 15
    assert process.environ()["OMP_WAIT_POLICY"] == "PASSIVE"
    await engine.close()


async def test_what_the_user_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setitem(PROCESS_OPTIONS, "fake", ProcessOptions(environment={"OMP_WAIT_POLICY": "PASSIVE"}))
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None)
    assert psutil.Process(engine.pid).environ()["OMP_WAIT_POLICY"] == "ACTIVE"
    await engine.close()


# The watch


async def test_an_engine_that_hangs_has_died(caplog: pytest.LogCaptureFixture) -> None:
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None, watch_seconds=0.05, silent_seconds=0.3)
    answering = asyncio.create_task(read(engine.generate(LONG, GenerationParams())))
    await asyncio.sleep(0.2)
    os.kill(engine.pid, signal.SIGSTOP)
    call = asyncio.create_task(engine.tokenize("hello"))
    async with asyncio.timeout(3):
        outcomes = await asyncio.gather(answering, call, return_exceptions=True)
        died = await engine.died()
    assert [type(outcome) for outcome in [*outcomes, died]] == [EngineDied] * 3
    assert "had not answered for 0.3 s" in str(died)
    assert not psutil.pid_exists(engine.pid)
    await engine.close()
    assert not caplog.records


async def test_an_engine_that_answers_late_lives() -> None:
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None, watch_seconds=0.05, silent_seconds=2)
    for _ in range(3):
        os.kill(engine.pid, signal.SIGSTOP)
        await asyncio.sleep(0.3)
        os.kill(engine.pid, signal.SIGCONT)
        assert (await engine.stats()).active_requests == 0
    await engine.close()
    assert await engine.died() is None


async def test_an_engine_is_not_blamed_for_a_parent_that_was_held_up() -> None:
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None, watch_seconds=0, silent_seconds=0.4)
    for _ in range(3):
        await asyncio.sleep(0.001)
        time.sleep(0.5)  # noqa: ASYNC251  the loop is what is held up
    assert (await engine.stats()).active_requests == 0
    await engine.close()
    assert await engine.died() is None


async def test_a_closed_engine_is_watched_no_more() -> None:
    before = asyncio.all_tasks()
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None, watch_seconds=0.05, silent_seconds=60)
    os.kill(engine.pid, signal.SIGSTOP)
    await asyncio.sleep(0.2)  # a question waits
    os.kill(engine.pid, signal.SIGCONT)
    await engine.close()
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() - before == set()


async def test_a_load_may_take_longer_than_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLLAMAV3_FAKE_LOAD_SECONDS", "1")
    engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None, watch_seconds=0.05, silent_seconds=0.5)
    await engine.close()


# Loading


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


async def loading_child(known: set[int]) -> int:
    async with asyncio.timeout(5):
        while not (new := children() - known):  # noqa: ASYNC110  the process table has no event
            await asyncio.sleep(0.01)
    return new.pop()


async def test_a_load_that_fails_raises_the_childs_reason_and_leaves_no_process() -> None:
    known = children()
    settings = EngineSettings(model_key="fake", model=ModelOptions(model_dir="/nowhere"))
    with pytest.raises(LoadFailed, match="model_dir: there is no folder /nowhere"):
        await HostedEngine.load("fake", settings, lambda progress: None)
    assert children() <= known


async def test_settings_that_cannot_travel_fail_the_load() -> None:
    settings = EngineSettings(model_key="half a \ud83e", model=ModelOptions(model_dir="demo"))
    with pytest.raises(LoadFailed, match="settings cannot be sent"):
        await HostedEngine.load("fake", settings, lambda progress: None)


async def test_an_engine_that_is_not_registered_fails_the_load() -> None:
    with pytest.raises(LoadFailed, match=r"no engine is called 'warp'; .*cpu, cuda, fake"):
        await HostedEngine.load("warp", SETTINGS, lambda progress: None)


async def test_a_child_that_is_killed_while_it_loads_fails_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLLAMAV3_FAKE_LOAD_SECONDS", "60")
    known = children()
    started = asyncio.Event()
    load = asyncio.create_task(HostedEngine.load("fake", SETTINGS, lambda progress: started.set()))
    await asyncio.wait_for(started.wait(), 5)
    os.kill(await loading_child(known), signal.SIGKILL)
    with pytest.raises(LoadFailed, match="SIGKILL while it loaded"):
        await asyncio.wait_for(load, 2)


@pytest.mark.parametrize("reported", [True, False], ids=["while it loads", "while it starts"])
async def test_a_cancelled_load_leaves_no_process(monkeypatch: pytest.MonkeyPatch, reported: bool) -> None:
    monkeypatch.setenv("EXLLAMAV3_FAKE_LOAD_SECONDS", "60")
    known = children()
    started = asyncio.Event()
    load = asyncio.create_task(HostedEngine.load("fake", SETTINGS, lambda progress: started.set()))
    pid = await loading_child(known)
    if reported:
        await asyncio.wait_for(started.wait(), 5)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(load, 2)
    assert_gone(pid, 2)


# The parent


@pytest.mark.parametrize("frozen", [False, True], ids=["at work", "deaf"])
def test_a_parent_that_is_killed_takes_its_engine_along(frozen: bool) -> None:
    if frozen and sys.platform != "linux":
        pytest.skip("only Linux ends a process that cannot notice that its parent has gone")
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        if frozen:
            os.kill(child, signal.SIGSTOP)
        parent.kill()
        assert_gone(child, 3)


def test_it_runs_on_uvloop_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        engine = await HostedEngine.load("fake", SETTINGS, lambda progress: None)
        events = await read(engine.generate(await engine.tokenize("say: on uvloop"), GenerationParams()))
        assert isinstance(events[0], Started)
        assert "".join(event.text for event in events if isinstance(event, Text)) == "on uvloop"
        os.kill(engine.pid, signal.SIGKILL)
        assert "SIGKILL" in str(await asyncio.wait_for(engine.died(), 2))
        await engine.close()
        closed = await HostedEngine.load("fake", SETTINGS, lambda progress: None)
        await closed.close()
        assert not psutil.pid_exists(closed.pid)

    uvloop.run(main())
