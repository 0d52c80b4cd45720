"""A fault in one job ends that job; only a fault of the scheduler ends the engine."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from exl3_requests import answer, greedy, prompt
from exllamav3 import Filter, Job
from exllamav3.generator.sampler import Sampler

from exllamav3_adapters.contract import GenerationParams, Grammar, PrefillProgress, Prompt
from exllamav3_adapters.errors import EngineDied, EngineError, EngineUnavailable, InvalidRequest, JobFailed
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.exl3.guarded_filter import GuardedFilter

Load = Callable[..., Awaitable[Exl3Engine]]


class BrokenSampler(Sampler):  # type: ignore[misc]
    reqs_past_ids = False

    def forward(self, *arguments: Any, **options: Any) -> Any:
        raise ValueError("no such token")


class BrokenFilter(Filter):  # type: ignore[misc]
    """Fails in the one call that its name says."""

    def __init__(self, tokenizer: Any, fails_in: str) -> None:
        super().__init__(tokenizer, None, None, False)
        self.fails_in = fails_in

    def _call(self, name: str) -> None:
        if name == self.fails_in:
            raise ValueError(f"{name} is broken")

    def attach(self, job: Any) -> None:
        super().attach(job)
        self._call("attach")

    def reset(self) -> None:
        self._call("reset")

    def accept_token(self, token: int) -> None:
        self._call("accept_token")

    def is_completed(self) -> bool:
        self._call("is_completed")
        return False

    def use_background_worker(self) -> bool:
        return self.fails_in == "background"

    def get_next_logit_mask(self) -> Any:
        self._call("get_next_logit_mask")
        self._call("background")
        return self.all_allowed()

    def all_allowed(self) -> Any:
        return torch.full((1, self.vocab_size // 32), -1, dtype=torch.int32)


async def fails_alone(engine: Exl3Engine, on_next_job: Any, change: Callable[[Job], None]) -> EngineError:
    """Runs a faulty request among others. Returns its error, having checked that the others are as without it."""
    expected, _ = await answer(engine.generate(prompt(40, seed=1), greedy(24)))
    neighbour = asyncio.create_task(answer(engine.generate(prompt(40, seed=1), greedy(24))))
    await asyncio.sleep(0.01)
    on_next_job(change)
    with pytest.raises(JobFailed) as caught:
        await answer(engine.generate(prompt(300, seed=2), greedy(8)))
    assert (await neighbour)[0] == expected
    assert (await answer(engine.generate(prompt(40, seed=1), greedy(24))))[0] == expected
    stats = await engine.stats()
    assert (stats.active_requests, stats.cache_tokens_used) == (0, 0)
    pagetable = engine._scheduler._generator.pagetable
    await engine._scheduler.call(lambda: pagetable.validate_pagetable([]))
    return caught.value


async def test_a_sampler_that_raises_fails_its_own_job(load: Load, on_next_job: Any) -> None:
    error = await fails_alone(await load(), on_next_job, lambda job: job.set_sampler(BrokenSampler()))
    assert "no such token" in error.message


@pytest.mark.parametrize(
    "fails_in", ["attach", "reset", "accept_token", "is_completed", "get_next_logit_mask", "background"]
)
async def test_a_filter_that_raises_fails_its_own_job(load: Load, on_next_job: Any, fails_in: str) -> None:
    def add_filter(job: Job) -> None:
        job.filters = [GuardedFilter(BrokenFilter(job.generator.tokenizer, fails_in))]

    error = await fails_alone(await load(), on_next_job, add_filter)
    assert f"{fails_in} is broken" in error.message


async def test_a_token_outside_the_vocabulary_is_refused(load: Load) -> None:
    engine = await load()
    bad = Prompt(token_ids=(*prompt(10).token_ids, 259))
    with pytest.raises(InvalidRequest, match="token ids must be from 0 to 258"):
        await answer(engine.generate(bad, greedy()))


async def test_a_bad_grammar_is_refused_before_it_is_queued(load: Load) -> None:
    engine = await load()
    params = GenerationParams(max_tokens=4, grammar=Grammar(kind="json_schema", source='{"type": "nonsense"}'))
    with pytest.raises(InvalidRequest, match="the JSON schema cannot be enforced: Invalid type: nonsense"):
        await answer(engine.generate(prompt(10), params))
    assert (await engine.stats()).counters["requests"] == 0


async def test_a_fault_of_the_scheduler_fails_all_that_wait_with_its_reason(load: Load) -> None:
    engine = await load()
    generator = engine._scheduler._generator
    streams = [engine.generate(prompt(600, seed=seed), greedy(200)) for seed in range(3)]
    async for event in streams[0]:
        if isinstance(event, PrefillProgress):
            break

    def broken_iterate() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    generator.iterate = broken_iterate
    for stream in streams:
        with pytest.raises(EngineDied, match="an illegal memory access"):
            await answer(stream)
    assert "an illegal memory access" in str(await engine.died())
    with pytest.raises(EngineUnavailable, match="an illegal memory access"):
        await answer(engine.generate(prompt(10), greedy()))
    with pytest.raises(EngineUnavailable):
        await engine.stats()


# The device


ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"
NO_MEMORY = "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.65 GiB."


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    return fail


class LostDeviceSampler(BrokenSampler):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        raise torch.AcceleratorError(ILLEGAL_ACCESS)


async def test_a_prefill_that_runs_out_of_memory_fails_alone_and_says_what_to_lower(
    load: Load, on_next_job: Any
) -> None:
    engine = await load(max_batch_size=3)
    error = await fails_alone(
        engine, on_next_job, lambda job: setattr(job, "prefill", raising(torch.OutOfMemoryError(NO_MEMORY)))
    )
    assert "(tried to allocate 512.00 MiB)" in error.message
    assert "lower chunk_size (now 256), max_batch_size (now 3) or cache_size (now 4096)" in error.message


async def test_what_it_had_allocated_is_free_once_its_reader_hears_of_it(load: Load, on_next_job: Any) -> None:
    engine = await load()
    held: list[weakref.ref[torch.Tensor]] = []

    def run_out(*arguments: Any) -> None:
        activations = torch.zeros(256)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError(NO_MEMORY)

    on_next_job(lambda job: setattr(job, "prefill", run_out))
    with pytest.raises(JobFailed):
        await answer(engine.generate(prompt(300), greedy()))
    assert [reference() for reference in held] == [None]


async def test_a_launch_that_the_driver_refused_fails_alone(load: Load, on_next_job: Any) -> None:
    refused = torch.AcceleratorError("CUDA error: invalid configuration argument")
    error = await fails_alone(await load(), on_next_job, lambda job: setattr(job, "prefill", raising(refused)))
    assert "invalid configuration argument" in error.message


@pytest.mark.parametrize(
    "change",
    [
        lambda job: setattr(job, "prefill", raising(torch.AcceleratorError(ILLEGAL_ACCESS))),
        lambda job: setattr(job, "allocate_pages", raising(RuntimeError(f"{ILLEGAL_ACCESS} (cache.cu:90)"))),
        lambda job: job.set_sampler(LostDeviceSampler()),
    ],
    ids=["prefill", "pages", "sampling"],
)
async def test_a_device_that_failed_in_one_job_ends_the_engine(
    load: Load, on_next_job: Any, change: Callable[[Job], None]
) -> None:
    engine = await load()
    others = [engine.generate(prompt(40, seed=seed), greedy(2000)) for seed in range(2)]
    await anext(others[0])
    on_next_job(change)
    for stream in (engine.generate(prompt(300), greedy()), *others):
        with pytest.raises(EngineDied, match=f"the engine's device failed \\({ILLEGAL_ACCESS}"):
            await answer(stream)
    assert ILLEGAL_ACCESS in str(await engine.died())


async def test_a_device_that_failed_in_a_command_ends_the_engine(load: Load) -> None:
    engine = await load()
    engine._scheduler._forgetting.forget = raising(RuntimeError(ILLEGAL_ACCESS))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=ILLEGAL_ACCESS):
        await engine.forget(prompt(300))
    assert ILLEGAL_ACCESS in str(await engine.died())


async def test_a_batch_that_runs_out_of_memory_ends_the_engine_and_says_what_to_lower(load: Load) -> None:
    engine = await load()
    stream = engine.generate(prompt(300), greedy(2000))
    await anext(stream)
    model = engine._scheduler._generator.model
    model.forward = raising(torch.OutOfMemoryError(NO_MEMORY))
    with pytest.raises(EngineDied, match=r"tried to allocate 512\.00 MiB.* lower chunk_size"):
        await answer(stream)


async def test_output_that_is_not_finite_fails_its_job_and_what_it_came_from_leaves_the_cache(load: Load) -> None:
    engine = await load()
    expected, _ = await answer(engine.generate(prompt(600), greedy()))
    layer = next(iter(engine._scheduler._generator.cache.layers.values()))
    await engine._scheduler.call(lambda: layer.k.fill_(float("nan")))
    with pytest.raises(JobFailed, match="not finite") as caught:
        await answer(engine.generate(prompt(600), greedy()))
    assert "Request" not in caught.value.message
    text, finished = await answer(engine.generate(prompt(600), greedy()))
    assert (text, finished.cached_tokens) == (expected, 0)


async def test_an_answer_that_ended_in_the_step_that_broke_has_its_end(load: Load, on_next_job: Any) -> None:
    engine = await load()
    held = asyncio.create_task(engine._scheduler.call(lambda: time.sleep(0.2)))
    await asyncio.sleep(0.05)
    ended = engine.generate(prompt(40, seed=1), greedy(1))
    broken = engine.generate(prompt(40, seed=2), greedy(8))
    jobs = iter([lambda job: None, lambda job: job.set_sampler(LostDeviceSampler())])

    def change(job: Job) -> None:
        next(jobs)(job)
        on_next_job(change)

    on_next_job(change)
    await held
    async with asyncio.timeout(5):
        assert (await answer(ended))[1].completion_tokens == 1
        with pytest.raises(EngineDied):
            await answer(broken)


async def test_of_a_fault_that_nobody_knows_only_its_place_is_told(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await load()
    engine._scheduler._generator.iterate = raising(KeyError("a word of the prompt"))
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(EngineDied, match=r"KeyError in .*fail, test_faults.py") as caught,
    ):
        await answer(engine.generate(prompt(40), greedy()))
    assert "a word of the prompt" not in caught.value.message + caplog.text


async def test_a_fault_of_an_idle_engine_is_noticed(load: Load) -> None:
    engine = await load()
    generator = engine._scheduler._generator
    generator.has_idle_work, generator.idle_work = lambda: True, raising(OSError("no space left on device"))
    await engine.stats()
    async with asyncio.timeout(5):
        assert "OSError" in str(await engine.died())


async def test_a_closed_engine_did_not_die(load: Load) -> None:
    engine = await load()
    died = asyncio.create_task(engine.died())
    await engine.close()
    assert await died is None
