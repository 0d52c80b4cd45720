"""What `contract.py` promises of images, held against every engine that reads them."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from picture import GREEN, RED, image_file

from exllamav3_adapters.contract import Chat, Engine, Finished, GenerationParams, Prefilled, Prompt, Text
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.hosted import HostedEngine
from exllamav3_adapters.registry import find_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = 256
FEW = 32
"""Tokens of a template's beginning, which prompts of any content share."""
RED_FILE, GREEN_FILE = image_file(RED, (20, 10)), image_file(GREEN, (20, 10))
LONG = "The clerk writes down what he sees. " * 20
MODEL: dict[str, Any] = {"max_seq_len": 2048, "cache_size": 4096, "chunk_size": 256, "vision": True}
MEMORY = MemoryOptions(aging_lfu=True, aging_capture_prefixes=True, aging_prefix_min_tokens=PAGE)


def _real(name: str) -> object:
    missing = importlib.util.find_spec("exllamav3") is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason="exllamav3 is not installed"))


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["fake", "fake-hosted", _real("exllamav3's scheduler")]
)
async def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    loaded = await _load(request.param, tmp_path_factory.mktemp("seeing") / "tiny")
    yield loaded
    await loaded.close()


async def _load(name: str, folder: Path) -> Engine:
    if name.startswith("fake"):
        settings = EngineSettings(model_key="m", model=ModelOptions(model_dir="demo", **MODEL), memory=MEMORY)
        if name == "fake":
            return await find_engine("fake").load(settings, lambda progress: None)
        return await HostedEngine.load("fake", settings, lambda progress: None)
    from seeing_model import Painter, load_seeing, write_seeing_folder

    model = ModelOptions(model_dir=str(write_seeing_folder(folder)), **MODEL)
    return await load_seeing(EngineSettings(model_key="m", model=model, memory=MEMORY), Painter())


def chat(*content: Any, system: str = "", role: str = "user") -> Chat:
    head = [{"role": "system", "content": system}] if system else []
    parts = [{"type": "text", "text": each} if isinstance(each, str) else image(each) for each in content]
    return Chat(messages=[*head, {"role": role, "content": parts}])


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "data": data}


async def answer(engine: Engine, prompt: Prompt, num_tokens: int = 16, **options: Any) -> tuple[str, Finished]:
    params = GenerationParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    events = [event async for event in engine.generate(prompt, params, **options)]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Text)), events[-1]


async def test_the_engine_says_that_it_reads_images(engine: Engine) -> None:
    assert engine.info.reads_images


async def test_a_prompt_names_its_images_and_where_they_stand(engine: Engine) -> None:
    prompt = await engine.render(chat("before", RED_FILE, "between", GREEN_FILE, RED_FILE))
    plain = await engine.render(chat("before", "between"))
    assert len(prompt.images) == 3
    digests = [found.digest for found in prompt.images]
    assert digests[0] == digests[2] != digests[1]
    starts = [found.start for found in prompt.images]
    assert starts == sorted(set(starts))
    shared = prompt.token_ids[: prompt.num_lasting_tokens - 1]  # a token of the image's may stand before it
    assert shared == plain.token_ids[: len(shared)]
    assert (await engine.render(chat("before"))).images == ()


async def test_the_same_image_is_the_same_prompt(engine: Engine) -> None:
    first, again, other = [
        await engine.render(chat("see", each)) for each in (RED_FILE, bytes(bytearray(RED_FILE)), GREEN_FILE)
    ]
    assert first == again
    assert first.token_ids != other.token_ids


async def test_an_answer_depends_on_the_image(engine: Engine) -> None:
    prompts = [await engine.render(chat("What is it?", each)) for each in (RED_FILE, GREEN_FILE, RED_FILE)]
    red, green, again = [(await answer(engine, prompt))[0] for prompt in prompts]
    assert red == again != green


async def test_usage_counts_the_image(engine: Engine) -> None:
    prompt = await engine.render(chat("Count it.", RED_FILE))
    _, finished = await answer(engine, prompt)
    assert finished.prompt_tokens == len(prompt.token_ids)


async def test_a_second_request_with_the_image_finds_its_pages(engine: Engine) -> None:
    prompt = await engine.render(chat("again", RED_FILE, LONG))
    first, second = [(await answer(engine, prompt))[1] for _ in range(2)]
    other = (await answer(engine, await engine.render(chat("again", GREEN_FILE, LONG))))[1]
    assert max(first.cached_tokens, other.cached_tokens) < FEW
    assert second.cached_tokens >= 2 * PAGE


async def test_a_prefill_of_a_prompt_with_an_image(engine: Engine) -> None:
    prompt = await engine.render(chat("prefill", RED_FILE, LONG))
    events = [event async for event in engine.prefill(prompt)]
    assert isinstance(events[-1], Prefilled)
    assert (await answer(engine, prompt))[1].cached_tokens >= 2 * PAGE


async def test_a_forgotten_prompt_with_an_image_is_computed_again(engine: Engine) -> None:
    prompt = await engine.render(chat("forget", RED_FILE, LONG))
    await answer(engine, prompt)
    assert await engine.forget(prompt) >= 2
    assert (await answer(engine, prompt))[1].cached_tokens < FEW


async def test_an_image_leaves_the_head_as_it_is(engine: Engine) -> None:
    system = "You are the clerk of heads."
    pictured, plain = [await engine.render(chat(each, system=system)) for each in (RED_FILE, "hi")]
    head = plain.token_ids[: plain.num_head_tokens]
    assert pictured.token_ids[: pictured.num_head_tokens] == head
    assert pictured.num_head_tokens == len(head) > 0


async def test_a_chain_is_captured_as_far_as_the_first_image(engine: Engine) -> None:
    prompt = await engine.render(chat("chain. " + LONG, RED_FILE, LONG))
    assert prompt.num_lasting_tokens > 2 * PAGE
    for number in range(4):
        await answer(engine, await engine.render(chat("chain. " + LONG, RED_FILE, LONG, str(number))))
    captured = [one for one in await engine.stored_prefixes() if one.token_ids[:PAGE] == prompt.token_ids[:PAGE]]
    assert captured
    for one in captured:
        assert len(one.token_ids) == prompt.num_lasting_tokens // PAGE * PAGE
        assert one.token_ids == prompt.token_ids[: len(one.token_ids)]


async def test_nothing_is_captured_where_an_image_comes_first(engine: Engine) -> None:
    before = await engine.stored_prefixes()
    for number in range(4):
        await answer(engine, await engine.render(chat(RED_FILE, "first. " + LONG, str(number))))
    assert await engine.stored_prefixes() == before


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"no image", "image 2 of the chat is no PNG"), (RED_FILE[:40], "image 2 of the chat is")],
    ids=["no image", "half an image"],
)
async def test_a_file_that_cannot_be_read_is_refused_by_its_number(engine: Engine, data: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await engine.render(chat(RED_FILE, data))


@pytest.mark.parametrize("role", ["system", "assistant"])
async def test_an_image_belongs_to_the_user_or_a_tool(engine: Engine, role: str) -> None:
    messages = [*chat("hi").messages, *chat(RED_FILE, role=role).messages, *chat("hi").messages]
    with pytest.raises(InvalidRequest, match="put it into a user's or a tool's"):
        await engine.render(Chat(messages=messages))
