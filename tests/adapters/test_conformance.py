"""What `contract.py` promises, held against every engine. A new engine adds a parameter in `conftest.py`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from exllamav3_adapters.contract import (
    Chat,
    Engine,
    EngineStats,
    EventStream,
    Finished,
    GenerationParams,
    Grammar,
    Head,
    LoadProgress,
    Prefilled,
    PrefillProgress,
    Prompt,
    Started,
    StoredPrefix,
    Text,
)
from exllamav3_adapters.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, JobFailed

pytestmark = pytest.mark.asyncio(loop_scope="module")

SYSTEM = {"role": "system", "content": "You are a careful clerk. Answer in short sentences."}
TOOL = {
    "type": "function",
    "function": {
        "name": "find_file",
        "description": "Finds a file by its name.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
PAGE = 256
CANCEL_SECONDS = 5.0
Load = Callable[..., Awaitable[Engine]]


def greedy(max_tokens: int = 12, **rest: Any) -> GenerationParams:
    return GenerationParams(temperature=0.0, max_tokens=max_tokens, **rest)


async def prompt_of(engine: Engine, num_tokens: int, topic: str) -> Prompt:
    """Exactly so many tokens, which differ from those of other topics from the first page on."""
    sentences = "".join(f"Note {number} on {topic} says that all is well. " for number in range(num_tokens // 4 + 8))
    prompt = await engine.tokenize(f"{topic}. {sentences}")
    assert len(prompt.token_ids) >= num_tokens
    return Prompt(token_ids=prompt.token_ids[:num_tokens])


async def ask(engine: Engine, words: str) -> Prompt:
    return await engine.render(Chat(messages=[SYSTEM, {"role": "user", "content": words}]))


async def run(stream: EventStream) -> tuple[str, Finished]:
    events = [event async for event in stream]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Text)), events[-1]


async def read_until(stream: EventStream, kind: type[Any]) -> Any:
    async for event in stream:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__} came")


async def until_idle(engine: Engine) -> EngineStats:
    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        stats = await engine.stats()
        if stats.active_requests == stats.queued_requests == stats.cache_tokens_used == 0:
            return stats
        assert time.monotonic() < deadline, f"still at work after {CANCEL_SECONDS} s: {stats}"
        await asyncio.sleep(0.02)


# Loading, and what an engine says of itself


async def test_an_engine_has_every_call_of_the_contract(engine: Engine) -> None:
    assert isinstance(engine, Engine)
    assert engine.info.model_key == "conformance"
    assert engine.info.page_size == PAGE
    assert engine.info.context_length == 1280
    assert engine.info.cache_tokens == 1536
    assert engine.info.cache_fingerprint


async def test_loading_reports_its_progress_and_loads_the_same_fingerprint(engine: Engine, load: Load) -> None:
    reports: list[LoadProgress] = []
    other = await load(reports.append)
    assert reports
    assert all(0 <= report.done <= report.total for report in reports)
    assert other.info == engine.info


# Rendering


@pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["no tools", "a tool"])
@pytest.mark.parametrize("system", [(), (SYSTEM,)], ids=["no system message", "a system message"])
@pytest.mark.parametrize(
    "variables", [{}, {"enable_thinking": False, "reasoning_effort": "low"}], ids=["", "variables"]
)
async def test_a_head_is_what_every_chat_with_it_begins_with(
    engine: Engine, system: tuple[Any, ...], tools: tuple[Any, ...], variables: dict[str, Any]
) -> None:
    head = await engine.render_head(Head(messages=system, tools=tools, template_variables=variables))
    first = {"role": "user", "content": "Where is my file?"}
    turns = [first, {"role": "assistant", "content": "Here."}, {"role": "user", "content": "Thanks."}]
    for messages in ([first], turns, [{"role": "user", "content": "¿Dónde está 🗂?"}]):
        chat = await engine.render(Chat(messages=[*system, *messages], tools=tools, template_variables=variables))
        assert chat.token_ids[: len(head.token_ids)] == head.token_ids
        assert chat.num_head_tokens == len(head.token_ids)


async def test_a_head_with_a_system_message_and_tools_is_longer_than_with_one_of_them(engine: Engine) -> None:
    both, alone = [await engine.render_head(Head(messages=[SYSTEM], tools=tools)) for tools in ([TOOL], [])]
    assert len(both.token_ids) > len(alone.token_ids) > 0


async def test_a_string_and_the_same_words_in_parts_render_alike(engine: Engine) -> None:
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "morning."}]
    one, other = [
        await engine.render(Chat(messages=[{"role": "user", "content": content}]))
        for content in ("Good morning.", parts)
    ]
    assert one == other


async def test_an_image_is_refused(engine: Engine) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(InvalidRequest):
        await engine.render(Chat(messages=[{"role": "user", "content": [part]}]))


async def test_a_chat_without_messages_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        await engine.render(Chat(messages=[]))


async def test_text_that_is_no_unicode_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        await engine.render(Chat(messages=[{"role": "user", "content": "half a \ud83e"}]))


# Generating


async def test_events_come_in_order(engine: Engine) -> None:
    prompt = await prompt_of(engine, 2 * PAGE + 10, "order")
    events = [event async for event in engine.generate(prompt, greedy())]
    kinds = [type(event) for event in events]
    assert kinds[0] is Started
    assert kinds[-1] is Finished
    assert kinds.count(Started) == kinds.count(Finished) == 1
    after_prefill = kinds[kinds.index(Text) :]
    assert PrefillProgress not in after_prefill
    progress = [event for event in events if isinstance(event, PrefillProgress)]
    assert [event.done_tokens for event in progress] == sorted({event.done_tokens for event in progress})
    assert {event.total_tokens for event in progress} <= {len(prompt.token_ids)}
    assert all(event.text for event in events if isinstance(event, Text))


async def test_a_greedy_repeat_is_equal_and_cached_to_whole_pages(engine: Engine) -> None:
    prompt = await prompt_of(engine, 2 * PAGE + 40, "repeats")
    cold_text, cold = await run(engine.generate(prompt, greedy()))
    warm_text, warm = await run(engine.generate(prompt, greedy()))
    assert warm_text == cold_text
    assert cold.cached_tokens == 0
    assert 2 * PAGE <= warm.cached_tokens < len(prompt.token_ids)
    assert cold.prompt_tokens == warm.prompt_tokens == len(prompt.token_ids)


async def test_a_longer_prompt_reuses_the_pages_it_shares(engine: Engine) -> None:
    long = await prompt_of(engine, 3 * PAGE + 20, "sharing")
    short = Prompt(token_ids=long.token_ids[: 2 * PAGE + 20])
    await run(engine.generate(short, greedy(2)))
    _, finished = await run(engine.generate(long, greedy(2)))
    assert 2 * PAGE <= finished.cached_tokens < 3 * PAGE


async def test_a_follow_up_reuses_the_answer_whatever_tokens_were_sampled(engine: Engine) -> None:
    words = "Tell me a story."
    while (
        len((prompt := await engine.render(Chat(messages=[{"role": "user", "content": words}]))).token_ids) < PAGE - 24
    ):
        words += " Once more."
    # Tokens that are unlikely enough for the tokenizer to cut their text otherwise.
    wild = GenerationParams(max_tokens=50, min_tokens=50, temperature=2.0, seed=5)
    text, finished = await run(engine.generate(prompt, wild))
    turns = [("user", words), ("assistant", text), ("user", words)]
    follow_up = await engine.render(Chat(messages=[{"role": role, "content": content} for role, content in turns]))
    assert follow_up.token_ids[: len(prompt.token_ids)] == prompt.token_ids
    _, again = await run(engine.generate(follow_up, greedy(2)))
    computed = len(prompt.token_ids) + finished.completion_tokens - 1
    assert again.cached_tokens >= computed // PAGE * PAGE > len(prompt.token_ids)


async def test_more_requests_than_a_batch_are_answered_as_each_would_be_alone(engine: Engine) -> None:
    prompts = [await ask(engine, f"Tell me a fact about the number {number}.") for number in range(6)]
    together = await asyncio.gather(*(run(engine.generate(prompt, greedy())) for prompt in prompts))
    for prompt in prompts:
        await engine.forget(prompt)
    alone = [await run(engine.generate(prompt, greedy())) for prompt in prompts]
    assert [text for text, _ in together] == [text for text, _ in alone]


async def test_max_tokens_ends_the_answer_with_length(engine: Engine) -> None:
    _, finished = await run(engine.generate(await ask(engine, "Tell me a story."), greedy(5)))
    assert (finished.reason, finished.completion_tokens) == ("length", 5)


async def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(engine: Engine) -> None:
    prompt = await ask(engine, "Tell me a long story about the sea.")
    whole, _ = await run(engine.generate(prompt, greedy(24)))
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    text, finished = await run(engine.generate(prompt, greedy(24, stop=(stop,))))
    assert text == whole[: whole.index(stop)]
    assert finished.reason == "stop"


async def test_a_seed_repeats_a_sampled_answer(engine: Engine) -> None:
    prompt = await ask(engine, "Name a colour.")
    answers = [
        (await run(engine.generate(prompt, GenerationParams(max_tokens=16, seed=seed))))[0] for seed in (1, 1, 2, 3)
    ]
    assert answers[0] == answers[1]
    assert len(set(answers)) > 1


async def test_log_probabilities_come_with_the_tokens(engine: Engine) -> None:
    prompt = await ask(engine, "Say something plain.")
    stream = engine.generate(prompt, greedy(4, top_logprobs=2))
    logprobs = [logprob async for event in stream if isinstance(event, Text) for logprob in event.logprobs]
    assert logprobs
    assert all(logprob.logprob <= 0 and len(logprob.top) == 2 for logprob in logprobs)


async def test_a_request_that_is_not_to_be_retained_is_answered(engine: Engine) -> None:
    prompt = await ask(engine, "Keep this between us.")
    kept, _ = await run(engine.generate(prompt, greedy()))
    not_kept, _ = await run(engine.generate(prompt, greedy(), retain=False))
    assert kept == not_kept


async def test_a_prompt_in_many_scripts_is_answered(engine: Engine) -> None:
    text, finished = await run(engine.generate(await ask(engine, "Größe, 世界, שלום, 🦙 e\u0301"), greedy()))
    assert text
    assert finished.completion_tokens > 0


async def test_counters_add_up_what_the_requests_report(engine: Engine) -> None:
    before = (await until_idle(engine)).counters
    _, finished = await run(engine.generate(await ask(engine, "Count me in."), greedy()))
    after = (await until_idle(engine)).counters
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert after[name] - before.get(name, 0.0) == getattr(finished, name)


# Refusals and faults


@pytest.mark.parametrize("call", ["generate", "prefill"])
async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(engine: Engine, call: str) -> None:
    limit = engine.info.context_length
    prompt = Prompt(token_ids=(*(await prompt_of(engine, limit, "much")).token_ids, 65))
    stream = engine.generate(prompt, greedy()) if call == "generate" else engine.prefill(prompt)
    with pytest.raises(ContextLengthExceeded) as caught:
        await anext(stream)
    assert (caught.value.prompt_tokens, caught.value.max_tokens) == (limit + 1, limit)


@pytest.mark.parametrize("call", ["generate", "prefill"])
async def test_an_empty_prompt_is_refused(engine: Engine, call: str) -> None:
    prompt = Prompt(token_ids=())
    with pytest.raises(InvalidRequest):
        await anext(engine.generate(prompt, greedy()) if call == "generate" else engine.prefill(prompt))


async def test_a_bad_token_or_grammar_fails_its_own_request_alone(engine: Engine) -> None:
    good = await ask(engine, "Stay calm.")
    expected, _ = await run(engine.generate(good, greedy()))
    bystander = asyncio.create_task(run(engine.generate(good, greedy())))
    bad_grammar = GenerationParams(max_tokens=4, grammar=Grammar(kind="regex", source="("))
    for stream in (
        engine.generate(Prompt(token_ids=(*good.token_ids, 10_000_000)), greedy()),
        engine.generate(good, bad_grammar),
    ):
        with pytest.raises((InvalidRequest, JobFailed)):
            await run(stream)
    assert (await bystander)[0] == expected
    assert (await run(engine.generate(good, greedy())))[0] == expected
    await until_idle(engine)


# Cancelling


async def test_leaving_while_the_answer_is_generated_frees_its_pages(engine: Engine) -> None:
    stream = engine.generate(await ask(engine, "Tell me everything you know."), greedy(400))
    await read_until(stream, Text)
    await stream.aclose()
    assert [event async for event in stream] == []
    await until_idle(engine)


async def test_leaving_during_prefill_frees_its_pages_and_keeps_no_request_waiting(engine: Engine) -> None:
    stream = engine.generate(await prompt_of(engine, 1200, "leaving"), greedy())
    await read_until(stream, Started)
    await stream.aclose()
    await stream.aclose()
    await until_idle(engine)
    text, _ = await run(engine.generate(await ask(engine, "Still there?"), greedy()))
    assert text


async def test_leaving_the_queue_leaves_the_others_alone(engine: Engine) -> None:
    prompts = [await ask(engine, f"Sing verse {number}.") for number in range(6)]
    streams = [engine.generate(prompt, greedy(24)) for prompt in prompts]
    await streams.pop().aclose()
    assert len([await run(stream) for stream in streams]) == 5
    await until_idle(engine)


async def test_a_reader_whose_task_is_cancelled_cancels_the_request(engine: Engine) -> None:
    stream = engine.generate(await prompt_of(engine, 1200, "tasks"), greedy(100))
    await read_until(stream, Started)
    reader = asyncio.create_task(run(stream))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until_idle(engine)


async def test_leaving_a_prefill_frees_its_pages(engine: Engine) -> None:
    stream = engine.prefill(await prompt_of(engine, 1200, "abandon"))
    await read_until(stream, PrefillProgress)
    await stream.aclose()
    await until_idle(engine)


# Prefilling, pinning, forgetting


async def test_a_prompt_that_was_prefilled_is_hit(engine: Engine) -> None:
    prompt = await prompt_of(engine, 3 * PAGE + 20, "warmth")
    events = [event async for event in engine.prefill(Prompt(token_ids=prompt.token_ids[: 2 * PAGE + 10]))]
    assert type(events[0]) is Started
    assert events[-1] == Prefilled(prompt_tokens=2 * PAGE + 10, cached_tokens=0)
    _, finished = await run(engine.generate(prompt, greedy(2)))
    assert finished.cached_tokens >= 2 * PAGE


async def test_a_prefill_lets_a_request_go_first_and_then_completes(engine: Engine) -> None:
    prompt = await prompt_of(engine, 1200, "patience")
    order: list[str] = []

    async def prefill() -> None:
        async for event in prefilling:
            if isinstance(event, Prefilled):
                order.append("prefill")

    wanted = await ask(engine, "May I?")  # rendered before: a GPU prefills the rest while the chat is rendered
    prefilling = engine.prefill(prompt)
    await read_until(prefilling, PrefillProgress)
    waiting = asyncio.create_task(prefill())
    await run(engine.generate(wanted, greedy(4)))
    order.append("request")
    await waiting
    assert order == ["request", "prefill"]
    _, finished = await run(engine.generate(prompt, greedy(2)))
    assert finished.cached_tokens >= 1200 // PAGE * PAGE


async def test_pinned_pages_survive_pressure_and_unpinned_ones_do_not(engine: Engine) -> None:
    prompt = await prompt_of(engine, 2 * PAGE + 10, "pins")
    done = await read_until(engine.prefill(prompt, pin=True), Prefilled)
    assert 2 * PAGE <= done.pinned_tokens <= len(prompt.token_ids)
    await fill_cache(engine, "pressure")
    assert (await until_idle(engine)).cache_tokens_pinned >= 2 * PAGE
    _, pinned = await run(engine.generate(prompt, greedy(2)))
    assert pinned.cached_tokens >= 2 * PAGE

    await engine.unpin(prompt)
    await engine.unpin(prompt)
    assert (await engine.stats()).cache_tokens_pinned == 0
    await fill_cache(engine, "squeeze")
    _, unpinned = await run(engine.generate(prompt, greedy(2)))
    assert unpinned.cached_tokens < 2 * PAGE


async def test_unpinning_a_prompt_leaves_what_another_pin_holds(engine: Engine) -> None:
    long = await prompt_of(engine, 2 * PAGE + 10, "overlap")
    short = Prompt(token_ids=long.token_ids[: PAGE + 10])
    for prompt in (long, short):
        await read_until(engine.prefill(prompt, pin=True), Prefilled)
    await engine.unpin(short)
    assert (await engine.stats()).cache_tokens_pinned >= 2 * PAGE
    await engine.unpin(long)
    assert (await engine.stats()).cache_tokens_pinned == 0


async def fill_cache(engine: Engine, topic: str) -> None:
    """Prompts and answers whose pages together are more than the cache's."""
    for part in range(2):
        await run(engine.generate(await prompt_of(engine, 3 * PAGE, f"{topic}{part}"), greedy(2)))


async def test_no_more_than_the_allowed_part_of_the_cache_is_pinned(engine: Engine) -> None:
    prompt = await prompt_of(engine, 4 * PAGE + 10, "greed")
    done = await read_until(engine.prefill(prompt, pin=True), Prefilled)
    assert done.pinned_tokens <= engine.info.cache_tokens // 2
    assert (await engine.stats()).cache_tokens_pinned <= engine.info.cache_tokens // 2
    await engine.unpin(prompt)


async def test_a_forgotten_prompt_is_cold_again(engine: Engine) -> None:
    prompt = await prompt_of(engine, 2 * PAGE + 10, "amnesia")
    first, _ = await run(engine.generate(prompt, greedy()))
    assert await engine.forget(prompt) >= 2
    again, finished = await run(engine.generate(prompt, greedy()))
    assert finished.cached_tokens == 0
    assert again == first


async def test_a_prompt_forgotten_while_it_runs_is_cold_afterwards(engine: Engine) -> None:
    prompt = await prompt_of(engine, 2 * PAGE + 10, "discretion")
    stream = engine.generate(prompt, greedy(24))
    await read_until(stream, Text)
    await engine.forget(prompt)
    await run(stream)
    _, finished = await run(engine.generate(prompt, greedy(2)))
    assert finished.cached_tokens == 0


async def test_forgetting_what_is_not_there_drops_nothing(engine: Engine) -> None:
    assert await engine.forget(await prompt_of(engine, 300, "nothing")) == 0


# Capturing what prompts share


async def ask_with(engine: Engine, head: Prompt, topics: str = "abc", **options: Any) -> None:
    """Requests that go on differently after the head."""
    for topic in topics:
        rest = await prompt_of(engine, 20, topic)
        await run(engine.generate(Prompt(token_ids=head.token_ids + rest.token_ids), greedy(1), **options))


async def captured_of(engine: Engine, head: Prompt) -> list[StoredPrefix]:
    return [one for one in await engine.stored_prefixes() if one.token_ids[:20] == head.token_ids[:20]]


async def test_without_the_option_nothing_is_captured(engine: Engine) -> None:
    await ask_with(engine, await prompt_of(engine, PAGE, "unasked"))
    assert await engine.stored_prefixes() == ()


async def test_what_prompts_share_is_captured_in_whole_pages(capturing_engine: Engine) -> None:
    head = await prompt_of(capturing_engine, PAGE + 40, "sharing")
    before = time.time()
    await ask_with(capturing_engine, head)
    (prefix,) = await captured_of(capturing_engine, head)
    assert prefix.token_ids == head.token_ids[:PAGE]
    assert prefix.cache_fingerprint == capturing_engine.info.cache_fingerprint
    assert prefix.credit >= 1.5
    assert before <= prefix.written_at <= time.time()
    assert bytes.fromhex(prefix.digest)


async def test_captured_prefixes_come_most_recently_written_first_and_only_those_after_a_time(
    capturing_engine: Engine,
) -> None:
    heads = [await prompt_of(capturing_engine, PAGE, f"{place} in line") for place in ("first", "second")]
    for head in heads:
        await ask_with(capturing_engine, head)
    prefixes = await capturing_engine.stored_prefixes()
    assert [one.token_ids for one in prefixes[:2]] == [head.token_ids for head in reversed(heads)]
    assert len({one.digest for one in prefixes}) == len(prefixes)
    assert await capturing_engine.stored_prefixes(prefixes[1].written_at) == prefixes[:1]
    await ask_with(capturing_engine, heads[1], "d")
    assert await capturing_engine.stored_prefixes(prefixes[0].written_at) == (), "one that is hit again is no news"


async def test_nothing_is_captured_of_requests_that_are_not_retained(capturing_engine: Engine) -> None:
    head = await prompt_of(capturing_engine, PAGE, "privacy")
    await ask_with(capturing_engine, head, retain=False)
    assert await captured_of(capturing_engine, head) == []


async def test_a_prefill_is_no_request_that_shares_a_prompt(capturing_engine: Engine) -> None:
    head = await prompt_of(capturing_engine, PAGE + 20, "replays")
    for _ in range(3):
        await read_until(capturing_engine.prefill(head), Prefilled)
    assert await captured_of(capturing_engine, head) == []


async def test_a_forgotten_prompt_is_captured_no_more(capturing_engine: Engine) -> None:
    head = await prompt_of(capturing_engine, PAGE, "oblivion")
    await ask_with(capturing_engine, head)
    assert await captured_of(capturing_engine, head)
    await capturing_engine.forget(head)
    assert await captured_of(capturing_engine, head) == []


# Closing


async def test_closing_ends_what_runs_and_every_later_call(load: Load) -> None:
    engine = await load()
    prompt = await ask(engine, "Tell me a long story.")
    running = engine.generate(prompt, greedy(400))
    await read_until(running, Started)
    prefilling = engine.prefill(prompt)
    await asyncio.gather(engine.close(), engine.close())
    await engine.close()
    for stream in (running, prefilling, engine.generate(prompt, greedy()), engine.prefill(prompt)):
        with pytest.raises(EngineUnavailable):
            await run(stream)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: engine.render(Chat(messages=[SYSTEM])),
        lambda: engine.render_head(Head(messages=[SYSTEM])),
        lambda: engine.tokenize("text"),
        lambda: engine.unpin(prompt),
        lambda: engine.forget(prompt),
        engine.stored_prefixes,
        engine.stats,
    ]
    for call in calls:
        with pytest.raises(EngineUnavailable):
            await call()
