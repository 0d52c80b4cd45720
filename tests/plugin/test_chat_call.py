"""One chat answered once and several times over, by a fake engine with its real queue, pages and faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from exllamav3_adapters.contract import (
    Chat,
    Engine,
    EventStream,
    Finished,
    GenerationParams,
    LoadProgress,
    Prompt,
    Text,
)
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import EngineDied, GenerationTimeout, InvalidRequest, JobFailed
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3.chat_call import ChatCall
from litellm_exllamav3.served_model import ServedModel

SECONDS_PER_TOKEN = 0.002


class Witness(FakeEngine):
    """Notes what it is asked. With a `second_prompt` its second request is that one."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings, seconds_per_token=SECONDS_PER_TOKEN)
        self.asked: list[GenerationParams] = []
        self.second_prompt: Prompt | None = None

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> EventStream:
        self.asked.append(params)
        if self.second_prompt is not None and len(self.asked) == 2:
            prompt = self.second_prompt
        return super().generate(prompt, params, retain=retain)


Serve = Callable[..., ServedModel]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    models: list[ServedModel] = []

    def start(max_batch_size: int = 8) -> ServedModel:
        settings = EngineSettings(
            model_key="m", model=ModelOptions(model_dir="demo", max_batch_size=max_batch_size, chunk_size=256)
        )

        async def load(report: Callable[[LoadProgress], None]) -> Engine:
            return Witness(settings)

        models.append(ServedModel("m", load_engine=load))
        models[-1].start()
        return models[-1]

    yield start
    for model in models:
        await model.close()


async def witness(model: ServedModel) -> Witness:
    engine = await model.engine(asyncio.get_running_loop().time() + 5)
    assert isinstance(engine, Witness)
    return engine


async def num_requests(model: ServedModel) -> int:
    """Those that have a place."""
    stats = await model.stats()
    return int(stats["requests_waiting"] + stats["requests_active"])


def call(model: ServedModel, words: str = "say: hello", num_choices: int = 1, **fields: Any) -> ChatCall:
    params = {"params": GenerationParams(), **fields}
    return ChatCall(
        model=model, chat=Chat(messages=[{"role": "user", "content": words}]), num_choices=num_choices, **params
    )


async def texts(answer: ChatCall) -> list[str]:
    found = [""] * answer.num_choices
    async with aclosing(answer.answer()) as events:
        async for index, event in events:
            if isinstance(event, Text):
                found[index] += event.text
    return found


async def test_one_answer(serve: Serve) -> None:
    model = serve()
    events = [event async for event in call(model).answer()]
    assert all(index == 0 for index, _ in events)
    assert "".join(event.text for _, event in events if isinstance(event, Text)) == "hello"
    assert isinstance(events[-1][1], Finished)


async def test_several_answers_each_end(serve: Serve) -> None:
    events = [event async for event in call(serve(), num_choices=3).answer()]
    assert sorted(index for index, event in events if isinstance(event, Finished)) == [0, 1, 2]


async def test_each_answer_has_a_seed_of_its_own(serve: Serve) -> None:
    model = serve()
    found = await texts(call(model, "tell me", num_choices=3, params=GenerationParams(seed=5)))
    assert [params.seed for params in (await witness(model)).asked] == [5, 6, 7]
    assert len(set(found)) == 3


async def test_the_largest_seed_has_followers(serve: Serve) -> None:
    model = serve()
    await texts(call(model, num_choices=2, params=GenerationParams(seed=2**63 - 1)))
    assert [params.seed for params in (await witness(model)).asked] == [2**63 - 1, -(2**63)]


async def test_without_a_seed_every_answer_is_random(serve: Serve) -> None:
    model = serve()
    await texts(call(model, num_choices=2))
    assert [params.seed for params in (await witness(model)).asked] == [None, None]


async def test_greedy_answers_are_equal(serve: Serve) -> None:
    first, second = await texts(call(serve(), "tell me", num_choices=2, params=GenerationParams(temperature=0, seed=1)))
    assert first == second


async def test_the_others_find_the_prompt_in_the_cache(serve: Serve) -> None:
    model = serve()
    words = "x" * 1000
    ends = {i: event async for i, event in call(model, words, num_choices=3).answer() if isinstance(event, Finished)}
    assert ends[0].cached_tokens == 0
    assert ends[0].prompt_tokens > 1000
    assert all(ends[index].cached_tokens > ends[0].prompt_tokens - 256 for index in (1, 2))


async def test_an_answer_that_ends_before_anything_was_read_starts_the_others_too(serve: Serve) -> None:
    model = serve()
    answer = call(model, "say: ", num_choices=2, params=GenerationParams(max_tokens=1))
    ends = [index async for index, event in answer.answer() if isinstance(event, Finished)]
    assert sorted(ends) == [0, 1]
    assert await num_requests(model) == 0


async def test_more_answers_than_the_batch_holds_are_refused_with_the_number(serve: Serve) -> None:
    with pytest.raises(InvalidRequest, match=r"n must be at most 2 .* it is 3") as caught:
        await texts(call(serve(max_batch_size=2), num_choices=3))
    assert caught.value.param == "n"


async def test_leaving_several_answers_ends_them_all(serve: Serve) -> None:
    model = serve()
    before = asyncio.all_tasks()
    async with aclosing(call(model, f"say: {'x' * 2000}", num_choices=3).answer()) as events:
        async for index, _ in events:
            if index == 2:
                break
    engine = await witness(model)
    await asyncio.sleep(3 * SECONDS_PER_TOKEN)
    assert (await engine.stats()).active_requests == 0
    assert {task for task in asyncio.all_tasks() - before if task.get_name() != "fake engine"} == set()
    assert await num_requests(model) == 0


async def test_a_reader_that_is_cancelled_ends_them_all(serve: Serve) -> None:
    model = serve()
    engine = await witness(model)
    reader = asyncio.create_task(texts(call(model, f"say: {'x' * 2000}", num_choices=3)))
    while (await engine.stats()).active_requests < 3:  # noqa: ASYNC110 - the engine has a state, not an event
        await asyncio.sleep(SECONDS_PER_TOKEN)
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled()
    await asyncio.sleep(3 * SECONDS_PER_TOKEN)
    assert (await engine.stats()).active_requests == 0


async def test_one_answer_that_fails_fails_the_request(serve: Serve) -> None:
    model = serve()
    engine = await witness(model)
    engine.second_prompt = await engine.render(Chat(messages=[{"role": "user", "content": "fault: job"}]))
    with pytest.raises(JobFailed):
        await texts(call(model, f"say: {'x' * 500}", num_choices=3))
    await asyncio.sleep(3 * SECONDS_PER_TOKEN)
    assert (await engine.stats()).active_requests == 0
    assert await num_requests(model) == 0


async def test_an_engine_that_dies_under_several_answers_fails_the_request(serve: Serve) -> None:
    with pytest.raises(EngineDied):
        await texts(call(serve(), "fault: crash", num_choices=3))


async def test_the_deadline_is_that_of_all_answers(serve: Serve) -> None:
    model = serve()
    with pytest.raises(GenerationTimeout):
        await texts(call(model, f"say: {'x' * 2000}", num_choices=3, timeout_seconds=0.1))
    assert await num_requests(model) == 0


async def test_no_answer_starves_another(serve: Serve) -> None:
    model = serve()
    last: dict[int, int] = {}
    widest = 0
    async for index, event in call(model, f"say: {'x' * 200}", num_choices=3).answer():
        if isinstance(event, Text):
            last[index] = last.get(index, 0) + len(event.text)
            if len(last) == 3:
                widest = max(widest, max(last.values()) - min(last.values()))
    assert last == {0: 200, 1: 200, 2: 200}
    assert widest < 20
