import asyncio

import pytest

from exllamav3_adapters.contract import (
    Finished,
    Prefilled,
    PrefillProgress,
    Reasoning,
    Started,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from exllamav3_adapters.errors import EngineDied, JobFailed
from exllamav3_adapters.event_stream import QueuedEventStream

FINISHED = Finished(reason="stop", prompt_tokens=3, cached_tokens=0, completion_tokens=2)


def text(piece: str) -> Text:
    return Text(text=piece, logprobs=(TokenLogprob(token=piece, logprob=-1.0),))


async def test_texts_that_wait_unread_are_read_as_one() -> None:
    stream = QueuedEventStream()
    for event in (Started(), text("a"), text("b"), text("c"), FINISHED):
        stream.feed(event)
    merged = Text(text="abc", logprobs=(*text("a").logprobs, *text("b").logprobs, *text("c").logprobs))
    assert [event async for event in stream] == [Started(), merged, FINISHED]


async def test_reasoning_that_waits_unread_is_read_as_one_and_apart_from_text() -> None:
    stream = QueuedEventStream()
    for event in (Reasoning(text="a"), Reasoning(text="b"), text("c"), FINISHED):
        stream.feed(event)
    assert [event async for event in stream] == [Reasoning(text="ab"), text("c"), FINISHED]


async def test_arguments_that_wait_unread_are_read_as_one_a_call() -> None:
    stream = QueuedEventStream()
    starts = [ToolCallStart(index=index, id=f"call_{index}", name="f") for index in (0, 1)]
    pieces = [ToolCallArguments(index=index, text=text) for index in (0, 1) for text in '{"}']
    for event in (starts[0], *pieces[:3], starts[1], *pieces[3:], FINISHED):
        stream.feed(event)
    whole = [ToolCallArguments(index=index, text='{"}') for index in (0, 1)]
    assert [event async for event in stream] == [starts[0], whole[0], starts[1], whole[1], FINISHED]


async def test_a_reader_that_keeps_up_gets_every_piece() -> None:
    stream = QueuedEventStream()
    seen = []
    for piece in ("a", "b"):
        stream.feed(text(piece))
        seen.append(await anext(stream))
    assert seen == [text("a"), text("b")]


async def test_of_prefill_progress_that_waits_the_latest_is_read() -> None:
    stream = QueuedEventStream()
    for done in (256, 512, 768):
        stream.feed(PrefillProgress(done_tokens=done, total_tokens=768))
    stream.feed(Prefilled(prompt_tokens=768, cached_tokens=0))
    assert await anext(stream) == PrefillProgress(done_tokens=768, total_tokens=768)


async def test_pieces_on_both_sides_of_another_event_stay_apart() -> None:
    stream = QueuedEventStream()
    progress = PrefillProgress(done_tokens=1, total_tokens=2)
    for event in (progress, text("a"), progress, text("b"), FINISHED):
        stream.feed(event)
    assert [event async for event in stream] == [progress, text("a"), progress, text("b"), FINISHED]


@pytest.mark.parametrize("last", [FINISHED, Prefilled(prompt_tokens=1, cached_tokens=0)])
async def test_it_ends_after_the_last_event_and_stays_ended(last: Finished | Prefilled) -> None:
    stream = QueuedEventStream()
    stream.feed(last)
    stream.feed(text("late"))
    assert [event async for event in stream] == [last]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_an_error_is_raised_after_the_events_before_it_and_then_the_stream_has_ended() -> None:
    stream = QueuedEventStream()
    stream.feed(text("a"))
    stream.fail(JobFailed("the filter failed"))
    stream.fail(EngineDied("too late"))
    assert await anext(stream) == text("a")
    with pytest.raises(JobFailed, match="the filter failed"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_early_cancels_once_and_drops_what_was_unread() -> None:
    cancels: list[bool] = []
    stream = QueuedEventStream(on_cancel=lambda: cancels.append(True))
    stream.feed(Started())
    await stream.aclose()
    await stream.aclose()
    assert cancels == [True]
    assert [event async for event in stream] == []


@pytest.mark.parametrize("read_first", [True, False])
async def test_closing_a_complete_stream_cancels_nothing(read_first: bool) -> None:
    cancels: list[bool] = []
    stream = QueuedEventStream(on_cancel=lambda: cancels.append(True))
    stream.feed(FINISHED)
    if read_first:
        await anext(stream)
    await stream.aclose()
    assert cancels == []


async def test_closing_wakes_a_reader_that_waits() -> None:
    stream = QueuedEventStream()
    reader = asyncio.ensure_future(_collect(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await asyncio.wait_for(reader, 1) == []


async def test_a_reader_cancelled_while_it_waits_cancels_the_request() -> None:
    cancels: list[bool] = []
    stream = QueuedEventStream(on_cancel=lambda: cancels.append(True))
    reader = asyncio.ensure_future(_collect(stream))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert cancels == [True]
    assert stream.complete


async def test_a_waiting_reader_gets_what_another_task_feeds() -> None:
    stream = QueuedEventStream()
    reader = asyncio.ensure_future(_collect(stream))
    for event in (Started(), text("a"), FINISHED):
        await asyncio.sleep(0)
        stream.feed(event)
    assert await asyncio.wait_for(reader, 1) == [Started(), text("a"), FINISHED]


async def _collect(stream: QueuedEventStream) -> list[object]:
    return [event async for event in stream]
