"""What the fake engine promises beyond the contract: answers that a test can direct, and a cache it can predict."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.contract import (
    Chat,
    ChatAnswer,
    Finished,
    GenerationParams,
    Grammar,
    Head,
    LoadProgress,
    PrefillProgress,
    Prompt,
    Reasoning,
    Started,
    Text,
)
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import EngineDied, InvalidRequest, JobFailed, LoadFailed
from exllamav3_adapters.fake import FakeEngine

Make = Callable[..., FakeEngine]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    engines: list[FakeEngine] = []

    def make(model: dict[str, Any] | None = None, memory: MemoryOptions | None = None, **pace: float) -> FakeEngine:
        options = ModelOptions(**({"model_dir": "demo", "chunk_size": 256, "max_seq_len": 4096} | (model or {})))
        settings = EngineSettings(model_key="fake", model=options, memory=memory or MemoryOptions())
        engines.append(FakeEngine(settings, **pace))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


@pytest.fixture
def engine(make: Make) -> FakeEngine:
    return make()


async def answer(engine: FakeEngine, words: str, **params: Any) -> tuple[str, Finished]:
    prompt = await engine.render(Chat(messages=[{"role": "user", "content": words}]))
    events = [event async for event in engine.generate(prompt, GenerationParams(**params))]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Text)), events[-1]


async def test_a_token_is_a_byte(engine: FakeEngine) -> None:
    assert (await engine.tokenize("é!")).token_ids == (0xC3, 0xA9, 0x21)


async def test_tools_render_alike_in_any_order_of_their_keys(engine: FakeEngine) -> None:
    tools = ({"type": "function", "function": {"name": "f"}}, {"function": {"name": "f"}, "type": "function"})
    one, other = [await engine.render_head(Head(tools=[tool])) for tool in tools]
    assert one == other


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("say: plain words ", "plain words"),
        ("please\nsay: after a line\nthank you", "after a line"),
        (r'say: "two\nlines, é"', "two\nlines, é"),
        ('say: "not closed', '"not closed'),
        ("say: 世界 🦙", "世界 🦙"),
        ("say:", ""),
    ],
)
async def test_it_says_what_it_is_told(engine: FakeEngine, words: str, expected: str) -> None:
    text, finished = await answer(engine, words)
    assert text == expected
    assert (finished.reason, finished.completion_tokens) == ("stop", len(expected.encode()))


async def test_only_the_last_user_message_directs_it(engine: FakeEngine) -> None:
    told, other = [{"role": "user", "content": words} for words in ("say: the old", "say: the new")]
    prompt = await engine.render(Chat(messages=[told, {"role": "assistant", "content": "say: mine"}, other]))
    events = [event async for event in engine.generate(prompt, GenerationParams())]
    assert "".join(event.text for event in events if isinstance(event, Text)) == "the new"


async def test_what_two_requests_share_is_captured_and_one_after_a_forget_is_not(make: Make) -> None:
    engine = make(memory=MemoryOptions(aging_lfu=True, aging_capture_prefixes=True, aging_prefix_min_tokens=512))
    head = "x" * 600
    for words in (head + "one", head + "two"):
        await answer(engine, words)
    (prefix,) = await engine.stored_prefixes()
    rendered = await engine.render(Chat(messages=[{"role": "user", "content": head}]))
    assert prefix.token_ids == rendered.token_ids[:512]
    await engine.forget(Prompt(token_ids=rendered.token_ids[:10]))
    await answer(engine, head + "three")
    assert await engine.stored_prefixes() == ()


@pytest.mark.parametrize("option", ["aging_lfu", "aging_capture_prefixes"])
async def test_one_of_the_options_alone_captures_nothing(make: Make, option: str) -> None:
    engine = make(memory=MemoryOptions(aging_prefix_min_tokens=256, **{option: True}))
    for words in ("x" * 600 + "one", "x" * 600 + "two"):
        await answer(engine, words)
    assert await engine.stored_prefixes() == ()


async def test_otherwise_the_answer_is_the_prompts_and_the_seeds_when_sampling(engine: FakeEngine) -> None:
    answers = [
        (await answer(engine, words, **params))[0]
        for words, params in [
            ("one", {}),
            ("one", {}),
            ("two", {}),
            ("one", {"seed": 1}),
            ("one", {"seed": 2, "temperature": 0.0}),
        ]
    ]
    assert answers[0] == answers[1] == answers[4]
    assert len(set(answers)) == 3


async def test_a_stop_string_counts_as_sampled_but_is_not_text(engine: FakeEngine) -> None:
    text, finished = await answer(engine, "say: one, two, three", stop=("three", ", t"))
    assert (text, finished.reason, finished.completion_tokens) == ("one", "stop", 6)


async def test_an_answer_cut_inside_a_character_ends_in_a_replacement(engine: FakeEngine) -> None:
    text, finished = await answer(engine, "say: aé", max_tokens=2)
    assert (text, finished.reason) == ("a\ufffd", "length")


async def test_banned_strings_are_not_said_and_short_answers_are_filled_up(engine: FakeEngine) -> None:
    assert (await answer(engine, "say: a bad word", banned_strings=("bad ",)))[0] == "a word"
    assert (await answer(engine, "say: ab", min_tokens=5))[0] == "ab..."


async def test_an_answer_ends_with_the_context(make: Make) -> None:
    engine = make({"max_seq_len": 256})
    text, finished = await answer(engine, f"say: {'x' * 140}", max_tokens=1000)
    assert finished.reason == "length"
    assert finished.prompt_tokens + len(text) == 256


@pytest.mark.parametrize("min_tokens", [10**9, 2**62])
async def test_an_answer_is_filled_up_to_no_more_than_the_context(make: Make, min_tokens: int) -> None:
    engine = make({"max_seq_len": 512})
    tracemalloc.start()
    text, finished = await answer(engine, "say: ab", min_tokens=min_tokens)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (finished.reason, finished.prompt_tokens + len(text)) == ("length", 512)
    assert most_bytes < 10**7


async def test_a_grammar_needs_to_be_told_the_answer(engine: FakeEngine) -> None:
    grammar = Grammar(kind="json_schema", source="{}")
    with pytest.raises(InvalidRequest, match="say:"):
        await answer(engine, "hello", grammar=grammar)
    assert (await answer(engine, "say: {}", grammar=grammar))[0] == "{}"


async def test_a_fault_in_a_job_is_its_own(engine: FakeEngine) -> None:
    other = asyncio.create_task(answer(engine, "say: unharmed"))
    with pytest.raises(JobFailed):
        await answer(engine, "fault: job")
    assert (await other)[0] == "unharmed"


async def test_a_crash_fails_every_request_and_every_later_call(make: Make) -> None:
    engine = make(seconds_per_token=0.01)
    other = asyncio.create_task(answer(engine, "hello"))
    with pytest.raises(EngineDied):
        await answer(engine, "fault: crash")
    with pytest.raises(EngineDied):
        await other
    with pytest.raises(EngineDied):
        await engine.stats()


async def test_requests_past_the_batch_size_wait_for_their_turn(make: Make) -> None:
    engine = make({"max_batch_size": 1}, seconds_per_token=0.005)
    first, second = [engine.generate(await engine.tokenize(words), GenerationParams()) for words in ("one", "two")]
    assert await anext(first) == Started()
    stats = await engine.stats()
    assert (stats.active_requests, stats.queued_requests) == (1, 1)
    assert isinstance([event async for event in first][-1], Finished)
    assert await anext(second) == Started()


async def test_requests_wait_for_pages_that_others_hold(make: Make) -> None:
    engine = make({"max_seq_len": 1024, "cache_size": 1024}, seconds_per_token=0.002)
    prompts = [Prompt(token_ids=tuple(bytes([letter]) * 600)) for letter in b"abc"]
    streams = [engine.generate(prompt, GenerationParams(max_tokens=5)) for prompt in prompts]
    assert await anext(streams[0]) == Started()
    assert (await engine.stats()).queued_requests == 2
    for stream in streams:
        assert isinstance([event async for event in stream][-1], Finished)


async def test_prefill_goes_by_chunks_and_its_pace(make: Make) -> None:
    engine = make({"chunk_size": 512}, seconds_per_prefill_page=0.02)
    started = asyncio.get_running_loop().time()
    stream = engine.prefill(Prompt(token_ids=tuple(b"p" * 1300)))
    events = [event async for event in stream]
    done = [event.done_tokens for event in events if isinstance(event, PrefillProgress)]
    assert done == [512, 1024, 1300]
    assert asyncio.get_running_loop().time() - started >= 6 * 0.02


async def test_a_prefill_that_was_interrupted_resumes_from_its_pages(make: Make) -> None:
    engine = make(seconds_per_prefill_page=0.005)
    stream = engine.prefill(Prompt(token_ids=tuple(b"r" * 1300)))
    events = [await anext(stream), await anext(stream)]
    await answer(engine, "hello")
    events += [event async for event in stream]
    done = [event.done_tokens for event in events if isinstance(event, PrefillProgress)]
    assert done == [256, 512, 768, 1024, 1280, 1300]


async def test_pages_of_old_prompts_make_room_leaf_first(make: Make) -> None:
    engine = make({"max_seq_len": 1024, "cache_size": 1024})
    for token_ids in (b"a" * 520, b"b" * 520, b"a" * 520):
        events = [event async for event in engine.prefill(Prompt(token_ids=tuple(token_ids)))]
    assert events[-1].cached_tokens == 256  # the leaf went, its root stayed
    assert (await engine.stats()).counters["evictions"] > 0


async def test_a_folder_that_is_not_there_fails_the_load() -> None:
    settings = EngineSettings(model_key="fake", model=ModelOptions(model_dir="/nowhere"))
    with pytest.raises(LoadFailed, match="/nowhere"):
        await FakeEngine.load(settings, lambda progress: None)


async def test_the_environment_sets_the_pace_of_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLLAMAV3_FAKE_LOAD_SECONDS", "0.1")
    reports: list[LoadProgress] = []
    loop = asyncio.get_running_loop()
    started = loop.time()
    settings = EngineSettings(model_key="fake", model=ModelOptions(model_dir="demo"))
    engine = await FakeEngine.load(settings, reports.append)
    assert loop.time() - started >= 0.1
    assert [report.done for report in reports] == [0, 1, 2, 3, 4]
    await engine.close()


@pytest.mark.parametrize("message", [5, {"role": "king", "content": "x"}, {"role": "user", "content": 5}])
async def test_a_message_of_the_wrong_shape_is_refused(engine: FakeEngine, message: Any) -> None:
    with pytest.raises(InvalidRequest):
        await engine.render(Chat(messages=[message]))


async def test_it_renders_with_a_real_template_where_one_is_set(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]<think>"
        "{# ends with </think> #}"
    )
    settings = EngineSettings(
        model_key="fake", model=ModelOptions(model_dir="demo", chat_template=str(template), chunk_size=256)
    )
    engine = await FakeEngine.load(settings, lambda progress: None)
    prompt = await engine.render(Chat(messages=[{"role": "user", "content": 'a line\nsay: "hm</think>yes"'}]))
    assert bytes(prompt.token_ids) == b'[user]a line\nsay: "hm</think>yes"[assistant]<think>'
    assert prompt.opens_reasoning
    assert engine.info.has_reasoning
    events = [event async for event in engine.generate(prompt, GenerationParams(chat=ChatAnswer()))]
    assert "".join(event.text for event in events if isinstance(event, Reasoning)) == "hm"
    assert "".join(event.text for event in events if isinstance(event, Text)) == "yes"
    await engine.close()


@pytest.mark.parametrize(
    ("said", "thought", "rest"),
    [
        ("<think>Let me see.</think>Yes.", "Let me", "Yes."),
        ("<think>Let me see.", "Let me", ""),
        ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("Yes, and more.", "", "Yes, and more."),
    ],
)
async def test_reasoning_keeps_to_its_budget(make: Make, said: str, thought: str, rest: str) -> None:
    engine = make({"reasoning": "on"})
    prompt = await engine.render(Chat(messages=[{"role": "user", "content": f"say: {said}"}]))
    params = GenerationParams(chat=ChatAnswer(reasoning_budget=7))
    events = [event async for event in engine.generate(prompt, params)]
    assert "".join(event.text for event in events if isinstance(event, Reasoning)) == thought
    assert "".join(event.text for event in events if isinstance(event, Text)) == rest
