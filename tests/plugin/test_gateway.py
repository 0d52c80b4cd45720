"""Settings, store and models together, over fake engines in process."""

import asyncio
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.contract import Chat, Engine, Finished, GenerationParams, LoadProgress, Text
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import EngineDied, EngineUnavailable
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3.config_file import load_settings
from litellm_exllamav3.faults import SettingsError
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.head import chat_head, request_head
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.workers import TooManyWorkers

SYSTEM = "You are a careful clerk. " * 60


class FakeEngines:
    """Loads fake engines in process and remembers them; `seconds` a page and a token."""

    def __init__(self, *, seconds_per_page: float = 0.0, seconds_per_token: float = 0.0) -> None:
        self.engines: list[FakeEngine] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._seconds = seconds_per_page, seconds_per_token

    async def __call__(self, name: str, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        assert name == "fake"
        await self.gate.wait()
        page, token = self._seconds
        self.engines.append(FakeEngine(settings, seconds_per_prefill_page=page, seconds_per_token=token))
        return self.engines[-1]


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[str], Path]:
    def write(model: str = "") -> Path:
        path = tmp_path / "config.yaml"
        text = textwrap.dedent(
            """
            model_list:
              - {model_name: local, litellm_params: {model: exllamav3/m}}
            litellm_settings:
              custom_provider_map: [{provider: exllamav3, custom_handler: litellm_exllamav3.provider.handler}]
              callbacks: [litellm_exllamav3.hooks.capture]
            exllamav3_settings:
              state_dir: ./state
              models:
                m:
                  engine: fake
                  model: {model_dir: demo, max_seq_len: 8192}
            """
        )
        path.write_text(text + textwrap.indent(textwrap.dedent(model), " " * 6))
        return path

    return write


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Gateway]]:
    gateways: list[Gateway] = []

    def open_gateway(path: Path, engines: FakeEngines | None = None) -> Gateway:
        gateway = Gateway.open(path, {}, load_engine=engines or FakeEngines())
        gateways.append(gateway)
        gateway.start()
        return gateway

    yield open_gateway
    for gateway in gateways:
        await gateway.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the gateway has a state, not an event
            await asyncio.sleep(0.002)


def served(gateway: Gateway) -> ServedModel:
    model = gateway.model("m")
    assert model is not None
    return model


async def ask(gateway: Gateway, system: str = SYSTEM, words: str = "say: hi") -> Finished:
    """As hook and provider do it: counted, answered, and kept once it is hot."""
    body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": words}]}
    capture, head = gateway.capture, request_head(body, "acompletion")
    assert capture is not None
    assert head is not None
    sighting = capture.observe("m", head, "sk-1")
    async with served(gateway).admit() as request:
        prompt = await request.render(Chat(messages=body["messages"]))
        if capture.wants(sighting):
            kept = chat_head(body["messages"], None)
            capture.keep(sighting, kept, len((await request.render_head(kept)).token_ids))
        stream = await request.open_stream(prompt, GenerationParams(temperature=0.0))
        events = [event async for event in stream]
    finished = events[-1]
    assert isinstance(finished, Finished)
    return finished


async def test_opening_it_loads_nothing_and_starting_it_does_not_wait(write_config, opened):
    engines = FakeEngines()
    engines.gate.clear()
    began = time.perf_counter()
    gateway = opened(write_config(), engines)
    assert time.perf_counter() - began < 1.0
    assert served(gateway).state == "loading"
    engines.gate.set()
    await until(lambda: served(gateway).state == "ready")


async def test_an_unknown_model_is_no_model(write_config, opened):
    assert opened(write_config()).model("other") is None


async def test_a_fault_in_the_settings_is_raised_before_anything_is_made(write_config, tmp_path):
    with pytest.raises(SettingsError, match="max_queue"):
        Gateway.open(write_config("    max_queue: many\n"), {})
    assert not (tmp_path / "state").exists()


async def test_a_second_worker_is_refused_and_two_gateways_on_one_folder_are_not(write_config, opened):
    path = write_config()
    with pytest.raises(TooManyWorkers):
        Gateway.open(path, {"NUM_WORKERS": "2"})
    one, other = opened(path), opened(path)
    await until(lambda: one.capture and other.capture)
    assert (await ask(one)).completion_tokens == (await ask(other)).completion_tokens


async def test_a_hot_head_is_in_the_cache_after_a_restart(write_config, opened):
    path = write_config()
    first = opened(path)
    await until(lambda: first.capture)
    cold = await ask(first)
    await ask(first)
    await first.stop()
    second = opened(path)
    await until(lambda: served(second).replay and served(second).replay.stats()["state"] == "done")
    warm = await ask(second)
    assert cold.cached_tokens == 0
    assert warm.cached_tokens >= 0.8 * len(SYSTEM)


async def test_with_replay_off_nothing_captured_comes_back(write_config, opened):
    first = opened(write_config())
    await until(lambda: first.capture)
    for _ in range(2):
        await ask(first)
    await first.stop()
    second = opened(write_config("    replay: false\n"))
    await until(lambda: second.capture and served(second).replay)
    assert (await ask(second)).cached_tokens == 0


async def test_a_dead_engine_is_replaced_and_replays(write_config, opened):
    engines = FakeEngines()
    gateway = opened(write_config("    memory: {warm_prefixes: ['" + "w" * 1024 + "']}\n"), engines)
    await until(lambda: gateway.capture)
    for _ in range(2):
        await ask(gateway)
    with pytest.raises(EngineDied):
        await ask(gateway, words="fault: crash")
    await until(lambda: len(engines.engines) == 2 and served(gateway).replay.stats()["items_done"] == 2)
    assert (await engines.engines[1].stats()).cache_tokens_pinned == 1024
    assert (await ask(gateway)).cached_tokens >= 0.8 * len(SYSTEM)


async def test_stats_show_models_replay_and_capture(write_config, opened):
    gateway = opened(write_config())
    await until(lambda: gateway.capture)
    for _ in range(2):
        await ask(gateway)
    await until(lambda: served(gateway).replay.stats()["state"] == "done")
    stats = await gateway.stats()
    assert stats["models"]["m"]["state"] == "ready"
    assert stats["models"]["m"]["engine"]["counters"]["requests"] == 2
    assert stats["models"]["m"]["replay"]["state"] == "done"
    assert stats["capture"]["models"]["m"]["captured"] == 1


async def test_forget_takes_a_head_out_of_store_and_cache(write_config, opened, tmp_path):
    engines = FakeEngines()
    gateway = opened(write_config(), engines)
    await until(lambda: gateway.capture)
    for _ in range(2):
        await ask(gateway)
    assert gateway.capture is not None
    (entry,) = await gateway.capture.entries("m")
    forgotten = await gateway.forget("m", entry.digest)
    assert forgotten is not None
    assert forgotten.num_pages
    assert await gateway.capture.entries("m") == []
    assert (await ask(gateway)).cached_tokens == 0
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert b"careful clerk" not in kept


async def test_forgetting_what_is_not_there_is_no_error(write_config, opened):
    gateway = opened(write_config())
    assert await gateway.forget("m", "0" * 32) is None


async def test_the_signal_writes_the_store_and_ends_the_replay_while_requests_go_on(write_config, opened, tmp_path):
    path = write_config("    capture: {flush_seconds: 60}\n")
    engines = FakeEngines(seconds_per_token=0.002)
    gateway = opened(path, engines)
    await until(lambda: gateway.capture and served(gateway).replay)
    await served(gateway).replay.wait()  # Reading the heads writes what waits, too.
    for _ in range(2):
        await ask(gateway)
    running = asyncio.create_task(ask(gateway, words=f"say: {'x' * 200}"))
    await asyncio.sleep(0.05)
    assert gateway.capture is not None
    assert gateway.capture.stats().pending_heads == 1
    gateway.begin_stop()
    gateway.begin_stop()
    await until(lambda: gateway.capture.stats().pending_heads == 0)
    assert (await running).completion_tokens == 200


async def test_stop_cancels_jobs_and_replay_writes_the_store_and_may_be_called_again(write_config, opened):
    engines = FakeEngines(seconds_per_page=0.02)
    gateway = opened(write_config("    memory: {warm_prefixes: ['" + "w" * 4000 + "']}\n"), engines)
    await until(lambda: gateway.capture and served(gateway).replay)
    running = asyncio.create_task(ask(gateway, system="x" * 6000))
    await asyncio.sleep(0.03)
    await asyncio.gather(gateway.stop(), gateway.stop())
    with pytest.raises(EngineUnavailable):
        await running
    assert served(gateway).state == "closed"
    with pytest.raises(EngineUnavailable):
        await engines.engines[0].stats()


async def test_stop_is_bounded_even_if_an_engine_hangs(write_config):
    class Hanging(FakeEngine):
        async def close(self) -> None:
            await asyncio.Event().wait()

    async def load(name: str, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        return Hanging(settings)

    gateway = Gateway(load_settings(write_config(), {}), load_engine=load, close_seconds=0.05)
    gateway.start()
    await until(lambda: served(gateway).state == "ready")
    began = time.perf_counter()
    await gateway.stop()
    assert time.perf_counter() - began < 2.0


async def test_it_can_be_stopped_before_it_was_started_and_while_it_loads(write_config):
    await Gateway.open(write_config(), {}, load_engine=FakeEngines()).stop()
    engines = FakeEngines()
    engines.gate.clear()
    gateway = Gateway.open(write_config(), {}, load_engine=engines)
    gateway.start()
    await gateway.stop()
    assert engines.engines == []


async def test_a_folder_that_cannot_be_made_costs_the_capture_and_not_the_models(write_config, tmp_path):
    settings = load_settings(write_config(), {})
    (tmp_path / "state").write_text("a file has come where the folder should be")
    gateway = Gateway(settings, load_engine=FakeEngines())
    gateway.start()
    async with served(gateway).admit() as request:
        prompt = await request.render(Chat(messages=[{"role": "user", "content": "say: hi"}]))
        stream = await request.open_stream(prompt, GenerationParams())
        assert "".join([event.text async for event in stream if isinstance(event, Text)]) == "hi"
    await gateway.stop()
