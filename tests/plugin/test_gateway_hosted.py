"""A gateway whose engine (a fake one) runs in a process of its own, as in a proxy."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from exllamav3_adapters.contract import Chat, GenerationParams, Text
from exllamav3_adapters.errors import EngineDied, LoadFailed
from exllamav3_adapters.hosted import HostedEngine
from litellm_exllamav3.engine_loading import load_hosted
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.settings import Settings


def settings(state_dir: Path) -> Settings:
    memory = {"warm_prefixes": ["w" * 1024], "aging_lfu": True, "aging_capture_prefixes": True}
    model = {"engine": "fake", "model": {"model_dir": "demo"}, "memory": memory}
    return Settings.model_validate({"state_dir": str(state_dir), "models": {"m": model}})


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    monkeypatch.setenv("EXLLAMAV3_FAKE_SECONDS_PER_TOKEN", "0.01")
    gateway = Gateway(settings(tmp_path / "state"))
    gateway.start()
    yield gateway
    await gateway.stop()


def served(gateway: Gateway) -> ServedModel:
    model = gateway.model("m")
    assert model is not None
    return model


async def ask(model: ServedModel, words: str) -> str:
    async with model.admit(20.0) as request:
        prompt = await request.render(Chat(messages=[{"role": "user", "content": words}]))
        stream = await request.open_stream(prompt, GenerationParams(temperature=0.0))
        return "".join([event.text async for event in stream if isinstance(event, Text)])


def engine_processes() -> list[psutil.Process]:
    """Children of this process itself: other tests' proxies may be running, with engines of their own."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if "exllamav3_adapters.host" in child.cmdline()]


async def until_it_is_loaded_again(gateway: Gateway) -> None:
    async with asyncio.timeout(10):
        while (await gateway.stats())["models"]["m"]["loads"] < 2:  # noqa: ASYNC110 - a count, not an event
            await asyncio.sleep(0.01)


async def until_there_is_a_process() -> None:
    async with asyncio.timeout(10):
        while not engine_processes():  # noqa: ASYNC110 - the operating system tells nobody
            await asyncio.sleep(0.01)


async def test_kill_9_of_the_engine_fails_what_waits_within_2_seconds_and_the_next_request_finds_a_new_one(gateway):
    model = served(gateway)
    assert await ask(model, "say: up") == "up"
    (process,) = engine_processes()
    waiting = [asyncio.create_task(ask(model, f"say: {'x' * 1000}")) for _ in range(12)]
    await asyncio.sleep(0.1)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    for task in waiting:
        with pytest.raises(EngineDied, match="killed by SIGKILL"):
            await task
    assert time.monotonic() - began < 2.0
    assert await ask(model, "say: back") == "back"
    assert model.replay is not None
    await model.replay.wait()
    assert (await gateway.stats())["models"]["m"]["engine"]["cache_tokens_pinned"] == 1024


async def test_kill_9_of_an_idle_engine_is_noticed(gateway):
    model = served(gateway)
    await ask(model, "say: up")
    (process,) = engine_processes()
    os.kill(process.pid, signal.SIGKILL)
    await until_it_is_loaded_again(gateway)
    assert await ask(model, "say: back") == "back"


async def test_stop_leaves_no_process(gateway):
    model = served(gateway)
    await ask(model, "say: up")
    running = asyncio.create_task(ask(model, f"say: {'x' * 1000}"))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await gateway.stop()
    assert time.monotonic() - began < 5.0
    assert engine_processes() == []
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], Exception)


async def test_stop_while_it_loads_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("EXLLAMAV3_FAKE_LOAD_SECONDS", "30")
    gateway = Gateway(settings(tmp_path / "state"))
    gateway.start()
    await until_there_is_a_process()
    await gateway.stop()
    assert engine_processes() == []


async def test_a_process_that_ends_while_it_loads_is_a_crash_and_a_wrong_setting_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("EXLLAMAV3_FAKE_LOAD_SECONDS", "30")
    loading = asyncio.create_task(
        load_hosted("fake", settings(tmp_path).models["m"].engine_settings("m"), lambda progress: None)
    )
    await until_there_is_a_process()
    await asyncio.sleep(0.3)
    os.kill(engine_processes()[0].pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="while it loaded"):
        await loading
    nowhere = Settings.model_validate(
        {"state_dir": "s", "models": {"m": {"engine": "fake", "model": {"model_dir": str(tmp_path / "nowhere")}}}}
    )
    with pytest.raises(LoadFailed, match="nowhere"):
        await HostedEngine.load("fake", nowhere.models["m"].engine_settings("m"), lambda progress: None)


async def test_what_the_engine_captured_crosses_the_process_and_comes_back_into_its_successor(gateway):
    model = served(gateway)
    for words in ("one", "two"):
        await ask(model, f"{'z' * 1000}\nsay: {words}")
    await model.collect_prefixes()
    (process,) = engine_processes()
    os.kill(process.pid, signal.SIGKILL)
    await until_it_is_loaded_again(gateway)
    assert await ask(model, "say: back") == "back"
    assert model.replay is not None
    await model.replay.wait()
    assert model.replay.stats()["items_done"] == 2
    assert model.replay.stats()["tokens_warmed"] == 1024 + 768
