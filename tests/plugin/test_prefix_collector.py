"""How an engine's own prefixes are asked for. A page of the fake engine is 256 bytes of text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from exllamav3_adapters.contract import Chat, GenerationParams, StoredPrefix
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3.prefix_collector import PrefixCollector

SETTINGS = EngineSettings(
    model_key="m",
    model=ModelOptions(model_dir="demo"),
    memory=MemoryOptions(aging_lfu=True, aging_capture_prefixes=True),
)
SECONDS = 0.005


class Kept:
    """What was handed on, round by round."""

    def __init__(self) -> None:
        self.rounds: list[Sequence[StoredPrefix]] = []

    async def __call__(self, prefixes: Sequence[StoredPrefix]) -> None:
        self.rounds.append(prefixes)

    def tokens(self) -> list[int]:
        return [len(prefix.token_ids) for found in self.rounds for prefix in found]


class Silent(FakeEngine):
    """An engine that does not answer this question while it is silent."""

    silent = True

    async def stored_prefixes(self, written_after: float = 0.0) -> tuple[StoredPrefix, ...]:
        if self.silent:
            await asyncio.Event().wait()
        return await super().stored_prefixes(written_after)


def collector(engine: FakeEngine, kept: Kept, seconds: float = SECONDS) -> PrefixCollector:
    return PrefixCollector("m", engine, kept, seconds_between_rounds=seconds, last_answer_seconds=0.05)


async def share(engine: FakeEngine, system: str) -> None:
    """Two chats that begin with the same words."""
    for words in ("say: a", "say: b"):
        chat = Chat(messages=[{"role": "system", "content": system}, {"role": "user", "content": words}])
        async for _ in engine.generate(await engine.render(chat), GenerationParams(temperature=0.0)):
            pass


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the collector has a state, not an event
            await asyncio.sleep(0.001)


async def test_each_prefix_is_handed_on_once() -> None:
    engine, kept = FakeEngine(SETTINGS), Kept()
    collecting = collector(engine, kept)
    collecting.start()
    await share(engine, "x" * 700)
    await until(lambda: kept.rounds)
    await share(engine, "y" * 1000)
    await until(lambda: len(kept.rounds) > 1)
    await asyncio.sleep(5 * SECONDS)
    await collecting.stop()
    assert kept.tokens() == [512, 1024]


async def test_the_last_round_is_at_the_stop_and_may_be_asked_for_more_than_once() -> None:
    engine, kept = FakeEngine(SETTINGS), Kept()
    collecting = collector(engine, kept, seconds=60)
    collecting.start()
    await asyncio.sleep(0)
    await share(engine, "x" * 700)
    await collecting.stop()
    await collecting.stop()
    assert kept.tokens() == [512]


async def test_after_the_stop_nothing_is_collected() -> None:
    engine, kept = FakeEngine(SETTINGS), Kept()
    collecting = collector(engine, kept)
    collecting.start()
    await collecting.stop()
    await share(engine, "x" * 700)
    await collecting.collect()
    assert kept.rounds == []


async def test_while_it_is_paused_all_is_collected_and_nothing_more_comes() -> None:
    engine, kept = FakeEngine(SETTINGS), Kept()
    collecting = collector(engine, kept)
    await share(engine, "x" * 700)
    collecting.start()
    async with collecting.paused():
        assert kept.tokens() == [512]
        await share(engine, "y" * 1000)
        await asyncio.sleep(5 * SECONDS)
        assert kept.tokens() == [512]
    await until(lambda: len(kept.rounds) > 1)
    await collecting.stop()


async def test_an_engine_that_dies_ends_it() -> None:
    engine, kept = FakeEngine(SETTINGS), Kept()
    collecting = collector(engine, kept)
    collecting.start()
    engine._crash()
    await asyncio.sleep(3 * SECONDS)
    await collecting.stop()
    assert kept.rounds == []


async def test_an_engine_that_does_not_answer_holds_up_nobody_for_long() -> None:
    engine, kept = Silent(SETTINGS), Kept()
    collecting = collector(engine, kept)
    collecting.start()
    await asyncio.sleep(2 * SECONDS)
    async with asyncio.timeout(1):
        await collecting.collect()
        await collecting.stop()


async def test_an_engine_that_answers_again_is_asked_again() -> None:
    engine, kept = Silent(SETTINGS), Kept()
    collecting = collector(engine, kept)
    await share(engine, "x" * 700)
    await collecting.collect()
    engine.silent = False
    collecting.start()
    await until(lambda: kept.rounds)
    await collecting.stop()


async def test_what_cannot_be_kept_ends_it_with_a_line_in_the_log(caplog) -> None:
    async def broken(prefixes: Sequence[StoredPrefix]) -> None:
        raise OSError("disk")

    engine = FakeEngine(SETTINGS)
    await share(engine, "x" * 700)
    collecting = PrefixCollector("m", engine, broken)
    await collecting.collect()
    await collecting.stop()
    assert "can no longer be collected" in caplog.text
