"""A fault in one job ends that job; only a fault of the scheduler ends the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
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
        import torch

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
        raise RuntimeError("an illegal memory access")

    generator.iterate = broken_iterate
    for stream in streams:
        with pytest.raises(EngineDied, match="an illegal memory access"):
            await answer(stream)
    with pytest.raises(EngineUnavailable, match="an illegal memory access"):
        await answer(engine.generate(prompt(10), greedy()))
    with pytest.raises(EngineUnavailable):
        await engine.stats()
