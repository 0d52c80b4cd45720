"""One model's life, over the fake engine and its real queue, pages and faults."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from exllamav3_adapters.contract import Chat, Engine, Finished, GenerationParams, LoadProgress, Started, Text
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import (
    EngineDied,
    EngineUnavailable,
    GenerationTimeout,
    InvalidRequest,
    LoadFailed,
    QueueFull,
)
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3.backoff import Backoff
from litellm_exllamav3.replay import Replay
from litellm_exllamav3.served_model import ServedModel

SETTINGS = EngineSettings(model_key="m", model=ModelOptions(model_dir="demo", max_batch_size=1, chunk_size=256))
GREEDY = GenerationParams(temperature=0.0)
CRASH = "fault: crash"


class Loads:
    """Loads fake engines one after the other, once the test lets it; each step is an outcome."""

    def __init__(self, *outcomes: BaseException | None, seconds_per_token: float = 0.0) -> None:
        self.outcomes = list(outcomes)
        self.gate = asyncio.Event()
        self.gate.set()
        self.engines: list[FakeEngine] = []
        self.began = 0
        self.seconds_per_token = seconds_per_token

    async def __call__(self, report: Callable[[LoadProgress], None]) -> Engine:
        self.began += 1
        report(LoadProgress(stage="weights", done=1, total=4))
        await self.gate.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        engine = FakeEngine(SETTINGS, seconds_per_token=self.seconds_per_token)
        self.engines.append(engine)
        return engine


def quick() -> Backoff:
    return Backoff(first_seconds=0.01, longest_seconds=0.02)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., ServedModel]]:
    models: list[ServedModel] = []

    def start(loads: Callable[[Callable[[LoadProgress], None]], Awaitable[Engine]], **options: Any) -> ServedModel:
        model = ServedModel("m", load_engine=loads, **({"backoff": quick()} | options))
        models.append(model)
        model.start()
        return model

    yield start
    for model in models:
        await model.close()


async def ask(model: ServedModel, words: str, timeout_seconds: float | None = None) -> str:
    async with model.admit(timeout_seconds) as request:
        prompt = await request.render(Chat(messages=[{"role": "user", "content": words}]))
        stream = await request.open_stream(prompt, GREEDY)
        return "".join([event.text async for event in stream if isinstance(event, Text)])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():  # noqa: ASYNC110 - the model has a state, not an event
            await asyncio.sleep(0.001)


async def test_requests_that_arrive_while_the_engine_loads_wait_for_it(serve):
    loads = Loads()
    loads.gate.clear()
    model = serve(loads)
    answers = [asyncio.create_task(ask(model, f"say: {word}")) for word in ("one", "two")]
    await asyncio.sleep(0.02)
    assert model.state == "loading"
    assert not any(answer.done() for answer in answers)
    loads.gate.set()
    assert await asyncio.gather(*answers) == ["one", "two"]
    assert model.state == "ready"


async def test_a_request_that_waited_too_long_for_the_load_hears_what_it_waited_for(serve):
    loads = Loads()
    loads.gate.clear()
    model = serve(loads)
    with pytest.raises(EngineUnavailable, match="still loading, weights 1/4"):
        await ask(model, "hello", timeout_seconds=0.02)


async def test_a_lazy_model_loads_at_its_first_request(serve):
    loads = Loads()
    model = serve(loads, lazy=True)
    await asyncio.sleep(0.01)
    assert (model.state, loads.began) == ("lazy", 0)
    assert await ask(model, "say: hi") == "hi"
    assert (model.state, loads.began) == ("ready", 1)


async def test_a_load_that_names_a_setting_fails_all_that_wait_and_is_not_tried_again(serve):
    loads = Loads(LoadFailed("model_dir: there is no folder /x"))
    loads.gate.clear()
    model = serve(loads)
    answers = [asyncio.create_task(ask(model, "hello")) for _ in range(2)]
    await asyncio.sleep(0.01)
    loads.gate.set()
    for answer in answers:
        with pytest.raises(LoadFailed, match="no folder /x"):
            await answer
    await asyncio.sleep(0.05)
    assert (model.state, loads.began) == ("failed", 1)
    with pytest.raises(EngineUnavailable, match="no folder /x"):
        model.admit()


async def test_a_load_that_crashes_fails_what_waits_at_once_and_is_tried_again(serve):
    loads = Loads(EngineDied("the process ended with signal 9"))
    loads.gate.clear()
    model = serve(loads)
    answer = asyncio.create_task(ask(model, "hello"))
    await asyncio.sleep(0.01)
    loads.gate.set()
    with pytest.raises(EngineDied, match="signal 9"):
        await answer
    assert await ask(model, "say: back") == "back"
    assert loads.began == 2


async def test_a_model_that_loaded_once_and_then_cannot_is_tried_again_and_then_stays_down(serve):
    """Its memory may not be free yet; a setting that is wrong would have been wrong before."""
    loads = Loads(None, LoadFailed("out of memory"), None, LoadFailed("model_dir: there is no folder /x"))
    model = serve(loads)
    with pytest.raises(EngineDied):
        await ask(model, CRASH)
    with pytest.raises(EngineDied, match="could not be loaded again: out of memory"):
        await ask(model, "hello")
    assert await ask(model, "say: back") == "back"
    with pytest.raises(EngineDied):
        await ask(model, CRASH)
    await until(lambda: model.state == "failed")
    assert (loads.began, "died 3 times" in model.reason) == (3, True)


async def test_a_lazy_model_whose_load_crashed_is_loaded_again_by_the_next_request_only(serve):
    loads = Loads(OSError("no file descriptors"))
    model = serve(loads, lazy=True)
    with pytest.raises(EngineDied, match="no file descriptors"):
        await ask(model, "hello")
    await asyncio.sleep(0.05)
    assert loads.began == 1
    assert await ask(model, "say: back") == "back"


async def test_a_lazy_model_that_dies_is_loaded_again_for_the_request_that_already_waits(serve):
    loads = Loads()
    model = serve(loads, lazy=True)
    with pytest.raises(EngineDied):
        await ask(model, CRASH)
    assert await ask(model, "say: back") == "back"
    assert loads.began == 2


async def test_a_lazy_model_that_dies_stays_away_until_it_is_asked_for(serve):
    loads = Loads()
    model = serve(loads, lazy=True)
    with pytest.raises(EngineDied):
        await ask(model, CRASH)
    await asyncio.sleep(0.05)
    assert loads.began == 1
    assert await ask(model, "say: back") == "back"


async def test_a_dead_engine_is_replaced_and_requests_that_arrive_meanwhile_wait_for_the_new_one(serve):
    loads = Loads()
    model = serve(loads)
    with pytest.raises(EngineDied, match="crashed"):
        await ask(model, CRASH)
    assert model.state == "restarting"
    assert "crashed" in model.reason
    assert await ask(model, "say: back") == "back"
    assert (model.state, model.reason, loads.began) == ("ready", "", 2)


async def test_requests_that_are_in_a_dying_engine_hear_the_reason_at_once(serve):
    loads = Loads(seconds_per_token=0.01)
    model = serve(loads)
    await ask(model, "say: up")
    others = [asyncio.create_task(ask(model, f"say: {'long ' * 200}")) for _ in range(3)]
    await asyncio.sleep(0.02)
    engine = loads.engines[0]
    engine._crash()
    async with asyncio.timeout(2):
        for other in others:
            with pytest.raises(EngineDied, match="crashed"):
                await other


async def test_an_engine_that_dies_unused_is_replaced_without_being_asked(serve):
    class Watched(FakeEngine):
        def __init__(self) -> None:
            super().__init__(SETTINGS)
            self.ended: asyncio.Future[EngineDied | None] = asyncio.get_running_loop().create_future()

        async def died(self) -> EngineDied | None:
            return await asyncio.shield(self.ended)

    engines: list[Watched] = []

    async def load(report: Callable[[LoadProgress], None]) -> Engine:
        engines.append(Watched())
        return engines[-1]

    model = serve(load)
    await until(lambda: model.state == "ready")
    engines[0].ended.set_result(EngineDied("the process ended with signal 9"))
    await until(lambda: len(engines) == 2 and model.state == "ready")
    assert (await model.stats())["loads"] == 2


async def test_three_deaths_in_ten_minutes_and_it_stays_down_and_says_why(serve):
    loads = Loads()
    model = serve(loads)
    for _ in range(3):
        with pytest.raises(EngineDied):
            await ask(model, CRASH)
    await until(lambda: model.state == "failed")
    with pytest.raises(EngineUnavailable, match=r"died 3 times within 10 minutes .* crashed"):
        await ask(model, "hello")
    assert loads.began == 3


async def test_a_fault_of_our_own_fails_the_model_and_is_in_the_log(serve, caplog):
    def broken(engine: Engine) -> Replay:
        raise ZeroDivisionError

    model = serve(Loads(), new_replay=broken)
    await until(lambda: model.state == "failed")
    assert "ZeroDivisionError" in model.reason
    assert "Traceback" in caplog.text


async def test_a_full_queue_says_when_to_come_back(serve):
    loads = Loads()
    loads.gate.clear()
    model = serve(loads, max_queue=2)
    waiting = [asyncio.create_task(ask(model, "say: x")) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(QueueFull) as refusal:
        await ask(model, "say: x")
    assert refusal.value.retry_after_seconds >= 1.0
    loads.gate.set()
    assert await asyncio.gather(*waiting) == ["x", "x"]
    assert await ask(model, "say: x") == "x"


async def test_a_request_in_the_engines_own_queue_counts_as_waiting_and_a_started_one_does_not(serve):
    model = serve(Loads(seconds_per_token=0.005), max_queue=1)
    await ask(model, "say: up")
    first = asyncio.create_task(ask(model, f"say: {'a' * 100}"))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(ask(model, "say: b"))
    await asyncio.sleep(0.02)
    stats = await model.stats()
    assert (stats["requests_active"], stats["requests_waiting"]) == (1, 1)
    with pytest.raises(QueueFull):
        await ask(model, "say: c")
    await asyncio.gather(first, second)


async def test_a_cancelled_waiter_leaves_the_queue_at_once_and_the_others_stay(serve):
    loads = Loads()
    loads.gate.clear()
    model = serve(loads, max_queue=2)
    leaver, stayer = (asyncio.create_task(ask(model, "say: x")) for _ in range(2))
    await asyncio.sleep(0.01)
    leaver.cancel()
    await asyncio.wait([leaver])
    assert (await model.stats())["requests_waiting"] == 1
    loads.gate.set()
    assert await stayer == "x"


async def test_an_answer_ends_at_its_deadline_and_its_job_leaves_the_engine(serve):
    loads = Loads(seconds_per_token=0.01)
    model = serve(loads)
    await ask(model, "say: up")
    with pytest.raises(GenerationTimeout, match=r"within 0\.4 s"):
        await ask(model, f"say: {'a' * 500}", timeout_seconds=0.4)
    await asyncio.sleep(0.02)
    stats = await loads.engines[0].stats()
    assert (stats.active_requests, stats.cache_tokens_used) == (0, 0)


async def test_a_request_that_never_got_its_turn_is_told_so_and_not_that_it_was_slow(serve):
    model = serve(Loads(seconds_per_token=0.01))
    await ask(model, "say: up")
    first = asyncio.create_task(ask(model, f"say: {'a' * 50}"))
    await asyncio.sleep(0.02)
    with pytest.raises(EngineUnavailable, match=r"waited 0\.1 s for its turn"):
        await ask(model, "say: b", timeout_seconds=0.1)
    assert await first == "a" * 50


async def test_a_slow_reader_meets_the_deadline_too(serve):
    model = serve(Loads())
    async with model.admit(timeout_seconds=0.3) as request:
        prompt = await request.render(Chat(messages=[{"role": "user", "content": "say: hello"}]))
        stream = await request.open_stream(prompt, GREEDY)
        assert isinstance(await anext(stream), Started)
        await asyncio.sleep(0.32)
        with pytest.raises(GenerationTimeout):
            await anext(stream)


async def test_a_stream_that_is_left_cancels_its_job_and_frees_its_place(serve):
    loads = Loads(seconds_per_token=0.01)
    model = serve(loads)
    async with model.admit() as request:
        prompt = await request.render(Chat(messages=[{"role": "user", "content": f"say: {'a' * 500}"}]))
        stream = await request.open_stream(prompt, GREEDY)
        async for event in stream:
            if isinstance(event, Text):
                break
    assert (await model.stats())["requests_active"] == 0
    await asyncio.sleep(0.02)
    assert (await loads.engines[0].stats()).active_requests == 0


async def test_a_refused_request_leaves_no_trace_in_the_queue(serve):
    model = serve(Loads())
    with pytest.raises(InvalidRequest):
        async with model.admit() as request:
            await request.render(Chat(messages=[]))
    assert (await model.stats())["requests_waiting"] == 0


async def test_the_last_event_is_the_engines_own_count(serve):
    model = serve(Loads())
    async with model.admit() as request:
        prompt = await request.render(Chat(messages=[{"role": "user", "content": "say: hi"}]))
        events = [event async for event in await request.open_stream(prompt, GREEDY)]
    assert events[-1] == Finished(
        reason="stop", prompt_tokens=len(prompt.token_ids), cached_tokens=0, completion_tokens=2
    )


async def test_closing_fails_what_waits_and_what_runs_and_closes_the_engine(serve):
    loads = Loads(seconds_per_token=0.01)
    model = serve(loads)
    await ask(model, "say: up")
    running = asyncio.create_task(ask(model, f"say: {'a' * 500}"))
    await asyncio.sleep(0.02)
    await model.close()
    await model.close()
    with pytest.raises(EngineUnavailable):
        await running
    with pytest.raises(EngineUnavailable, match="closed"):
        await loads.engines[0].stats()
    with pytest.raises(EngineUnavailable, match="shutting down"):
        model.admit()


async def test_closing_while_it_loads_ends_the_load(serve):
    loads = Loads()
    loads.gate.clear()
    model = serve(loads)
    waiting = asyncio.create_task(ask(model, "hello"))
    await asyncio.sleep(0.01)
    await model.close()
    with pytest.raises(EngineUnavailable, match="shutting down"):
        await waiting
    loads.gate.set()
    await asyncio.sleep(0.01)
    assert loads.engines == []


async def test_an_engine_that_hangs_in_its_close_is_left_behind_in_time(serve):
    class Hanging(FakeEngine):
        async def close(self) -> None:
            await super().close()
            await asyncio.Event().wait()

    async def load(report: Callable[[LoadProgress], None]) -> Engine:
        return Hanging(SETTINGS)

    model = serve(load, close_seconds=0.05)
    await ask(model, "say: up")
    async with asyncio.timeout(1):
        await model.close()
