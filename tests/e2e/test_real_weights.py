"""What a client gets from real weights, through a real proxy with the CPU engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from demo_chats import COUNT, Chats, cancelled, new_head, rendered, token_ids, tokenizer
from proxy_process import Proxy

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

QUESTIONS = [COUNT, "Name ten animals.", "Name ten colours.", "Write about the sea."]


@pytest.fixture
async def chats(real_proxy: Proxy) -> AsyncIterator[Chats]:
    async with Chats(real_proxy) as chats:
        await chats.idle()
        yield chats


async def test_the_answer_is_the_same_cold_cached_whole_and_streamed(chats: Chats) -> None:
    head = new_head(600)
    cold = await chats.ask(head)
    cached = await chats.ask(head)
    streamed = await chats.ask(head, stream=True)
    assert cold.text == cached.text == streamed.text
    assert {cold.finish_reason, cached.finish_reason, streamed.finish_reason} == {"length"}
    assert cold.cached_tokens < 30
    assert cached.cached_tokens > 550


async def test_usage_is_true_and_the_same_whole_and_streamed(chats: Chats) -> None:
    head = new_head(600)
    prompt_tokens = len(token_ids(rendered(head, COUNT)))
    before = chats.proxy.counter("local", "cached_tokens")
    answers = [await chats.ask(head, stream=stream) for stream in (False, True, False)]
    assert answers[0].cached_tokens < 30
    # All but the last token, which has to be computed to have something to sample from.
    assert [answer.usage for answer in answers[1:]] == [(prompt_tokens, prompt_tokens - 1, 16)] * 2
    counted = chats.proxy.counter("local", "cached_tokens") - before
    assert counted == sum(answer.cached_tokens for answer in answers)


async def test_an_anthropic_client_gets_the_same_answer(chats: Chats) -> None:
    head = new_head(300)
    answer = await chats.ask(head)
    request: dict[str, Any] = {
        "model": "local",
        "max_tokens": 16,
        "system": head,
        "messages": [{"role": "user", "content": COUNT}],
        "extra_body": {"temperature": 0},
    }
    async with anthropic.AsyncAnthropic(
        base_url=chats.proxy.base_url, api_key=chats.proxy.master_key, max_retries=0, timeout=60
    ) as client:
        whole = await client.messages.create(**request)
        async with client.messages.stream(**request) as stream:
            streamed = await stream.get_final_message()
    for message in (whole, streamed):
        assert message.content[0].text == answer.text
        assert message.stop_reason == "max_tokens"
        assert message.usage.output_tokens == 16
    assert whole.usage.cache_read_input_tokens == answer.prompt_tokens - 1


async def test_requests_that_name_no_max_tokens_share_batches(chats: Chats) -> None:
    """Without the sharing each would wait for the one before it: each is stopped by its own text, late."""
    head = new_head(100)
    alone = [await chats.ask(head, question, max_tokens=32) for question in QUESTIONS]
    stops = [answer.text[-8:] for answer in alone]
    began = time.monotonic()
    together = await asyncio.gather(
        *(
            chats.ask(head, question, stream=True, max_tokens=None, stop=stop)
            for question, stop in zip(QUESTIONS, stops, strict=True)
        )
    )
    took = time.monotonic() - began
    expected = [answer.text[: answer.text.index(stop)] for answer, stop in zip(alone, stops, strict=True)]
    assert [answer.text for answer in together] == expected
    assert {answer.finish_reason for answer in together} == {"stop"}
    assert max(answer.first_text for answer in together) < min(answer.ended for answer in together)
    assert took < 0.9 * sum(answer.seconds for answer in alone)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_stop_string_may_begin_in_one_token_and_end_in_another(chats: Chats, stream: bool) -> None:
    answer = await chats.ask("You are terse.", QUESTIONS[1], max_tokens=32)
    stop = _string_across_tokens(answer.text)
    stopped = await chats.ask("You are terse.", QUESTIONS[1], max_tokens=32, stop=[stop], stream=stream)
    assert stopped.text == answer.text[: answer.text.index(stop)]
    assert stopped.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_banned_string_does_not_appear(chats: Chats, stream: bool) -> None:
    answer = await chats.ask("You are terse.", QUESTIONS[1], max_tokens=32)
    banned = _string_across_tokens(answer.text)
    without = await chats.ask(
        "You are terse.", QUESTIONS[1], max_tokens=32, stream=stream, extra_body={"banned_strings": [banned]}
    )
    assert banned.lower() not in without.text.lower()
    # It went back to before the string and took another way from there.
    kept = answer.text.lower().index(banned.lower()) - 8
    assert without.text[:kept] == answer.text[:kept]
    assert without.completion_tokens == 32


def _string_across_tokens(text: str) -> str:
    """From the last character of one token to the second of the next but one, from the middle of the text on."""
    offsets = tokenizer().encode(text, add_special_tokens=False).offsets
    for index in range(len(offsets) // 2, len(offsets) - 2):
        start, end = offsets[index][1] - 1, offsets[index + 2][0] + 2
        found = text[start:end]
        if "\n" not in found and text.lower().index(found.lower()) == start:
            return found
    raise AssertionError(f"no such string in {text!r}")


async def test_a_seed_repeats_an_answer(chats: Chats) -> None:
    request: dict[str, Any] = {"question": QUESTIONS[3], "temperature": 1.5, "top_p": 0.95}
    first = await chats.ask("You are a poet.", seed=7, **request)
    again = await chats.ask("You are a poet.", seed=7, stream=True, **request)
    others = {(await chats.ask("You are a poet.", seed=seed, **request)).text for seed in (8, 9)}
    assert first.text == again.text
    assert others - {first.text}


async def test_the_proxy_answers_while_a_long_prompt_prefills(chats: Chats) -> None:
    request = asyncio.create_task(chats.ask(new_head(6000), stream=True))
    await chats.prefilling()
    latencies = []
    async with httpx.AsyncClient(base_url=chats.proxy.base_url) as client:
        for _ in range(60):
            began = time.monotonic()
            assert (await client.get("/health/liveliness")).status_code == 200
            latencies.append(time.monotonic() - began)
            await asyncio.sleep(0.02)
    mock_seconds = await chats.mock()
    assert not request.done()
    await cancelled(request)
    await chats.idle()
    assert sorted(latencies)[56] < 0.1
    assert mock_seconds < 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_during_prefill_frees_its_pages_at_the_next_chunk(
    chats: Chats, stream: bool
) -> None:
    chunk_seconds = await chats.chunk_seconds()
    request = asyncio.create_task(chats.ask(new_head(6000), stream=stream))
    await chats.prefilling()
    await cancelled(request)
    left = time.monotonic()
    served = await chats.ask("You are terse.", QUESTIONS[0], max_tokens=8)
    assert served.completion_tokens == 8
    # Beside a prefill that goes on, each of its 8 tokens would wait for a chunk.
    assert served.ended - left < 5 * chunk_seconds + 1
    assert await chats.idle(5 * chunk_seconds + 1) < 2 * chunk_seconds + 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_timeout_during_prefill_is_408_and_frees_its_pages(chats: Chats, stream: bool) -> None:
    chunk_seconds = await chats.chunk_seconds()
    # Of the two dozen chunks' time that it needs; enough to have begun on a busy machine.
    seconds = 6 * chunk_seconds
    began = time.monotonic()
    with pytest.raises(openai.APIStatusError) as refused:
        await chats.ask(new_head(6000), stream=stream, extra_headers={"x-litellm-timeout": f"{seconds:.2f}"})
    assert refused.value.status_code == 408
    assert time.monotonic() - began < seconds + 2
    assert await chats.idle(5 * chunk_seconds + 1) < 2 * chunk_seconds + 1
