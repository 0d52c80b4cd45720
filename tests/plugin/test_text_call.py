"""Text completions over a fake engine: which choice is which, what starts when, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from exllamav3_adapters.contract import (
    Engine,
    EngineInfo,
    EventStream,
    GenerationParams,
    LoadProgress,
    Prompt,
)
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import ContextLengthExceeded, InvalidRequest, JobFailed
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.text_answer import WholeText
from litellm_exllamav3.text_call import TextCall

BOS = tuple(b"<s>")


class Witness(FakeEngine):
    """Notes what it is asked, and has a token that begins texts."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.asked: list[tuple[Prompt, GenerationParams]] = []

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, text_start=BOS)

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> EventStream:
        self.asked.append((prompt, params))
        return super().generate(prompt, params, retain=retain)


@pytest.fixture
async def model() -> AsyncIterator[ServedModel]:
    settings = EngineSettings(
        model_key="m", model=ModelOptions(model_dir="demo", max_seq_len=1024, max_batch_size=2, chunk_size=256)
    )

    async def load(report: Callable[[LoadProgress], None]) -> Engine:
        return Witness(settings)

    served = ServedModel("m", load_engine=load)
    served.start()
    yield served
    await served.close()


async def witness(model: ServedModel) -> Witness:
    engine = await model.engine(asyncio.get_running_loop().time() + 5)
    assert isinstance(engine, Witness)
    return engine


async def answer(model: ServedModel, *prompts: Any, **fields: Any) -> WholeText:
    call = TextCall(model=model, prompts=prompts, **{"params": GenerationParams(), **fields})
    whole = WholeText(num_choices=call.num_choices)
    async for index, event in call.answer():
        whole.add(index, event)
    assert whole.complete
    return whole


def texts(whole: WholeText) -> list[str]:
    return [choice["text"] for choice in whole.choices()]


async def test_copies_follow_their_prompt(model: ServedModel) -> None:
    whole = await answer(model, "\nsay: a", "\nsay: bb", "\nsay: ccc", num_copies=2)
    assert texts(whole) == ["a", "a", "bb", "bb", "ccc", "ccc"]
    assert [choice["index"] for choice in whole.choices()] == list(range(6))


async def test_copies_have_seeds_of_their_own(model: ServedModel) -> None:
    await answer(model, "x", "y", num_copies=2, params=GenerationParams(seed=7, max_tokens=3))
    asked = (await witness(model)).asked
    assert sorted((prompt.token_ids[-1], params.seed) for prompt, params in asked) == [
        (ord("x"), 7), (ord("x"), 8), (ord("y"), 7), (ord("y"), 8),
    ]  # fmt: skip


async def test_a_prompts_tokens_count_once(model: ServedModel) -> None:
    prompt = "x" * 600 + "\nsay: a"
    for cached in (0, 512):
        usage = (await answer(model, prompt, "\nsay: bb", num_copies=2)).usage()
        assert usage["prompt_tokens"] == len(prompt) + len("\nsay: bb") + 2 * len(BOS)
        assert usage["completion_tokens"] == 2 * len("a") + 2 * len("bb")
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached


async def test_no_more_answers_run_than_the_engine_decodes_together(model: ServedModel) -> None:
    call = TextCall(model=model, prompts=[f"say: {'x' * 50}"] * 9, params=GenerationParams())
    most = 0
    async for _ in call.answer():
        stats = await (await witness(model)).stats()
        most = max(most, stats.active_requests + stats.queued_requests)
    assert most == 2
    stats = await model.stats()
    assert (stats["requests_waiting"], stats["requests_active"]) == (0, 0)


async def test_a_text_begins_as_the_tokenizer_has_it(model: ServedModel) -> None:
    await answer(model, "say: a", "<s>say: a", tuple(b"say: a"))
    await answer(model, "say: a", starts_text=False)
    asked = [bytes(prompt.token_ids) for prompt, _ in (await witness(model)).asked]
    assert sorted(asked) == sorted([b"<s>say: a", b"<s>say: a", b"say: a", b"say: a"])


async def test_an_empty_text_is_what_begins_texts(model: ServedModel) -> None:
    assert (await answer(model, "", params=GenerationParams(max_tokens=3))).usage()["prompt_tokens"] == len(BOS)


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"prompts": ["x", ""], "starts_text": False}, InvalidRequest, "prompt[1]"),
        ({"prompts": [""], "starts_text": False}, InvalidRequest, "prompt"),
        ({"prompts": ["x" * 1024]}, ContextLengthExceeded, "prompt"),
        ({"prompts": ["x"], "num_copies": 3}, InvalidRequest, "n"),
    ],
)
async def test_what_cannot_be_completed_is_refused(
    model: ServedModel, fields: dict[str, Any], error: type[InvalidRequest], param: str
) -> None:
    with pytest.raises(error) as caught:
        async for _ in TextCall(model=model, params=GenerationParams(), **fields).answer():
            pass
    assert caught.value.param == param
    assert not (await witness(model)).asked


async def test_one_answers_fault_ends_all(model: ServedModel) -> None:
    with pytest.raises(JobFailed):
        await answer(model, "\nsay: a", "\nfault: job", "\nsay: b")
    stats = await (await witness(model)).stats()
    await asyncio.sleep(0.01)
    assert (await model.stats())["requests_active"] == 0
    assert stats.queued_requests == 0
