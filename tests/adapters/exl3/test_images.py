"""Images under exllamav3's scheduler, beyond what every engine that sees promises."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from exl3_requests import answer, greedy
from picture import BLUE, GREEN, RED, image_file
from seeing_model import BEGIN, Painter, load_seeing, write_seeing_folder

from exllamav3_adapters.contract import Chat, Prefilled, Prompt
from exllamav3_adapters.engine_settings import EngineSettings, ImageOptions, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import EngineUnavailable, InvalidRequest, JobFailed, QueueFull
from exllamav3_adapters.exl3.engine import Exl3Engine

PAGE = 256
FIRST_ID = 10**9
LONG = "The clerk writes down what he sees. " * 20
Load = Callable[..., Awaitable[Exl3Engine]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_folder(tmp_path_factory.mktemp("seeing") / "tiny")


@pytest.fixture(scope="module")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_folder(tmp_path_factory.mktemp("seeing") / "hybrid", hybrid=True)


@pytest.fixture
def painter() -> Painter:
    return Painter()


@pytest_asyncio.fixture
async def load(folder: Path, painter: Painter) -> AsyncIterator[Load]:
    engines: list[Exl3Engine] = []

    async def load(
        memory: MemoryOptions | None = None,
        images: ImageOptions | None = None,
        folder: Path = folder,
        painter: Painter = painter,
        **model: Any,
    ) -> Exl3Engine:
        sizes: dict[str, Any] = {"max_seq_len": 4096, "cache_size": 4096, "chunk_size": 256} | model
        settings = EngineSettings(
            model_key="tiny",
            model=ModelOptions(model_dir=str(folder), vision=True, **sizes),
            memory=memory or MemoryOptions(),
            images=images or ImageOptions(),
        )
        engines.append(await load_seeing(settings, painter))
        return engines[-1]

    yield load
    for engine in engines:
        await engine.close()


def picture(color: Any = RED, width: int = 20) -> dict[str, Any]:
    return {"type": "image", "data": image_file(color, (width, 4))}


def user(*content: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
    return {"role": "user", "content": parts}


async def render(engine: Exl3Engine, *content: Any) -> Prompt:
    return await engine.render(Chat(messages=[user(*content)]))


async def said(engine: Exl3Engine, prompt: Prompt, num_tokens: int = 12, **params: Any) -> str:
    return (await answer(engine.generate(prompt, greedy(num_tokens, ignore_eos=True, **params))))[0]


async def test_the_component_runs_on_the_schedulers_thread(load: Load, painter: Painter) -> None:
    engine = await load()
    await render(engine, picture())
    assert painter.threads == ["exllamav3-scheduler"]


async def test_an_image_is_prepared_once(load: Load, painter: Painter) -> None:
    engine = await load()
    prompts = await asyncio.gather(*[render(engine, picture(), "a") for _ in range(4)])
    await render(engine, "b", picture(), picture())
    assert len(painter.threads) == 1
    assert len(set(prompts)) == 1
    await render(engine, picture(GREEN))
    assert len(painter.threads) == 2


async def test_two_engines_of_a_process_do_not_share_placeholders(load: Load) -> None:
    one, other = [await render(await load(), picture()) for _ in range(2)]
    assert not {token for token in one.token_ids if token >= FIRST_ID} & set(other.token_ids)


async def test_who_leaves_takes_no_image_from_others(load: Load, painter: Painter) -> None:
    engine = await load()
    leaving = asyncio.create_task(render(engine, picture()))
    staying = asyncio.create_task(render(engine, picture()))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).images
    assert len(painter.threads) == 1


async def test_images_and_words_are_answered_together_as_alone(load: Load) -> None:
    engine = await load()
    prompt = await render(engine, picture(width=30), LONG)
    alone = await said(engine, prompt)
    together = await asyncio.gather(
        said(engine, prompt),
        said(engine, await render(engine, "words alone")),
        said(engine, await render(engine, picture(GREEN, width=30), LONG)),
    )
    assert together[0] == alone
    assert together[2] != alone
    assert await said(engine, await render(engine, "words alone")) == together[1]


async def test_an_image_over_several_pages_and_chunks(load: Load) -> None:
    engine = await load()
    prompt = await render(engine, "x" * 200, picture(width=700), "What is it?")
    cold = await said(engine, prompt)
    text, finished = await answer(engine.generate(prompt, greedy(12, ignore_eos=True)))
    assert finished.cached_tokens >= 3 * PAGE
    assert text == cold


async def test_a_long_answer_keeps_its_image_when_it_is_queued_again(load: Load) -> None:
    engine = await load()
    prompt = await render(engine, picture(width=40), "Go on.")
    _, finished = await answer(engine.generate(prompt, greedy(600, ignore_eos=True)))
    assert finished.completion_tokens == 600


async def test_penalties_pass_over_placeholders(load: Load) -> None:
    engine = await load()
    prompt = await render(engine, picture(width=40), "Go on.")
    penalties = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5, "dry_multiplier": 0.8}
    assert await said(engine, prompt, **penalties)


async def test_drafts_from_repeated_text_take_no_placeholder_for_a_token(folder: Path, painter: Painter) -> None:
    from exllamav3_adapters.engine_settings import DraftOptions

    model = ModelOptions(model_dir=str(folder), vision=True, max_seq_len=2048, cache_size=2048, chunk_size=256)
    drafting = EngineSettings(model_key="tiny", model=model, draft=DraftOptions(draft_mode="ngram", draft_num_tokens=4))
    texts = []
    for settings in (drafting, EngineSettings(model_key="tiny", model=model)):
        engine = await load_seeing(settings, painter)
        prompt = await render(engine, "aba", picture(width=5), "aba", picture(width=5), "aba")
        texts.append(await said(engine, prompt, 60))
        await engine.close()
    assert texts[0] == texts[1]


async def test_a_follow_up_finds_the_turn_with_the_image(load: Load) -> None:
    engine = await load()
    opening = user(LONG, picture(), "What is it?")
    text, _ = await answer(engine.generate(await engine.render(Chat(messages=[opening])), greedy(40)))
    turns = [opening, {"role": "assistant", "content": text}, user("And now?")]
    prompt = await engine.render(Chat(messages=turns))
    _, finished = await answer(engine.generate(prompt, greedy(4)))
    assert finished.cached_tokens >= 3 * PAGE


async def test_aligned_images_are_placed_by_the_tokens_before_them(load: Load, painter: Painter) -> None:
    painter.align = 4
    engine = await load()
    for words in ("", "a", "ab", "abc"):
        prompt = await render(engine, words, picture())
        first = prompt.token_ids.index(BEGIN, prompt.images[0].start - 4)
        assert prompt.token_ids[prompt.images[0].start] >= FIRST_ID
        assert first < prompt.images[0].start
        assert await said(engine, prompt)


async def test_placeholders_without_their_image_are_refused(load: Load) -> None:
    engine = await load()
    prompt = await render(engine, picture())
    for token_ids in (prompt.token_ids, (5, FIRST_ID + 10**6), (5, 2**40), (5, -1)):
        with pytest.raises(InvalidRequest, match="token ids must be from 0 to 258"):
            await answer(engine.generate(Prompt(token_ids=token_ids), greedy()))


async def test_an_image_that_had_to_go_before_its_request_came_is_said_to_have(load: Load) -> None:
    engine = await load(images=ImageOptions(cache_mebibytes=1))
    big = 3000  # rows of 256 bytes: two of them are more than a MiB
    first = await render(engine, picture(RED, big))
    await render(engine, picture(GREEN, big))
    gc.collect()
    with pytest.raises(QueueFull, match=r"images\.cache_mebibytes"):
        await answer(engine.generate(first, greedy()))
    again = await render(engine, picture(RED, big))
    assert again.token_ids != first.token_ids
    with pytest.raises(QueueFull):
        await answer(engine.generate(first, greedy()))
    assert await said(engine, again, 2)


async def test_an_image_stays_while_a_request_uses_it(load: Load, painter: Painter) -> None:
    engine = await load(images=ImageOptions(cache_mebibytes=1))
    prompt = await render(engine, picture(RED, 3000))
    running = engine.generate(prompt, greedy(400, ignore_eos=True))
    await anext(running)
    for color in (GREEN, BLUE):
        await render(engine, picture(color, 3000))
    assert await render(engine, picture(RED, 3000)) == prompt
    assert len(painter.threads) == 3
    await running.aclose()


async def test_a_size_that_the_component_does_not_take_is_the_requests_fault(load: Load, painter: Painter) -> None:
    engine = await load()
    painter.fault = AssertionError("aspect ratio")
    with pytest.raises(InvalidRequest, match=r"cannot take image 1 of the chat \(20 x 4 pixels: AssertionError\)"):
        await render(engine, picture())
    painter.fault = None
    assert await said(engine, await render(engine, picture()))


async def test_a_fault_of_the_component_fails_its_request_alone(load: Load, painter: Painter) -> None:
    engine = await load()
    painter.fault = RuntimeError("no kernel")
    with pytest.raises(JobFailed):
        await render(engine, picture())
    painter.fault = None
    assert await said(engine, await render(engine, picture()))


async def test_a_broken_device_ends_the_engine(load: Load, painter: Painter) -> None:
    engine = await load()
    painter.fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(Exception, match="illegal memory access"):
        await render(engine, picture())
    assert await engine.died() is not None


async def test_a_closed_engine_prepares_no_image(load: Load) -> None:
    engine = await load()
    await engine.close()
    with pytest.raises(EngineUnavailable):
        await render(engine, picture())


# What outlives the process


def holds_placeholder(folder: Path, prompt: Prompt) -> list[Path]:
    """Files that hold two placeholders in a row, as the disk tier writes tokens (64-bit little-endian)."""
    ids = [token for token in prompt.token_ids if token >= FIRST_ID][:2]
    needle = b"".join(token.to_bytes(8, "little") for token in ids)
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


async def test_no_page_behind_an_image_reaches_the_disk(load: Load, tmp_path: Path) -> None:
    memory = MemoryOptions(sysmem_kv_cache=64, disk_cache_dir=str(tmp_path / "disk"), disk_cache_write_interval=0.01)
    engine = await load(memory)
    content = (LONG, picture(width=60), LONG)
    prompt = await render(engine, *content)
    await said(engine, prompt)
    num_lasting = prompt.num_lasting_tokens // PAGE * PAGE
    assert num_lasting == 2 * PAGE
    await engine.close()
    assert holds_placeholder(tmp_path, prompt) == []
    later = await load(memory)
    _, finished = await answer(later.generate(await render(later, *content), greedy(1)))
    assert finished.cached_tokens == num_lasting


async def test_the_next_process_does_not_take_another_image_for_this_one(load: Load, tmp_path: Path) -> None:
    """Its placeholders begin with the same ids. Here each engine goes on counting, so the ids are put back."""
    from exllamav3.tokenizer import mm_embedding

    memory = MemoryOptions(sysmem_kv_cache=64, disk_cache_dir=str(tmp_path / "disk"), disk_cache_write_interval=0.01)
    allocator = mm_embedding.global_allocator
    before = allocator.next_token_index
    answers = []
    for color in (RED, GREEN):
        allocator.next_token_index = before
        engine = await load(memory)
        prompt = await render(engine, picture(color, 300), LONG)
        answers.append(await answer(engine.generate(prompt, greedy(8, ignore_eos=True))))
        await engine.close()
    (red, _), (green, finished) = answers
    assert finished.cached_tokens < PAGE
    assert red != green


async def test_credit_goes_to_the_pages_before_an_image(load: Load, tmp_path: Path) -> None:
    memory = MemoryOptions(aging_lfu=True, aging_persist_dir=str(tmp_path), aging_capture_prefixes=True)
    engine = await load(memory)
    for number in range(3):
        await said(engine, await render(engine, LONG, picture(width=60), LONG, str(number)), 2)
    assert (await engine.stats()).counters["credit_entries"] == 2
    await engine.close()
    assert (await (await load(memory)).stats()).counters["credit_entries"] == 2


async def test_no_credit_where_an_image_comes_first(load: Load) -> None:
    engine = await load(MemoryOptions(aging_lfu=True))
    for number in range(3):
        await said(engine, await render(engine, picture(width=300), LONG, str(number)), 2)
    assert (await engine.stats()).counters["credit_entries"] == 0


async def test_a_replay_with_an_image_yields_to_requests(load: Load, hybrid_folder: Path) -> None:
    engine = await load(MemoryOptions(sysmem_kv_cache=64), folder=hybrid_folder, recurrent_frontier_checkpoints=True)
    prompt = await render(engine, picture(width=600), LONG * 2)
    words = await render(engine, "Words alone.")
    replay = engine.prefill(prompt)
    await anext(replay)
    await said(engine, words)
    events = [event async for event in replay]
    assert isinstance(events[-1], Prefilled)
    _, finished = await answer(engine.generate(prompt, greedy(1)))
    assert finished.cached_tokens >= PAGE


async def test_a_hybrid_model_reads_images_and_keeps_no_frontier_of_them(load: Load, hybrid_folder: Path) -> None:
    memory = MemoryOptions(sysmem_kv_cache=64)
    engine = await load(memory, folder=hybrid_folder, recurrent_frontier_checkpoints=True)
    red, green = [await render(engine, "What is it?", picture(color, 40), LONG) for color in (RED, GREEN)]
    cold = await said(engine, red)
    assert await said(engine, green) != cold
    assert await said(engine, red) == cold
    assert (await engine.stats()).counters["checkpoints_in_pages"] == 0
    await said(engine, await render(engine, "Words alone."))
    assert (await engine.stats()).counters["checkpoints_in_pages"] > 0
