"""What comes back into an engine's cache after a load. One token of the fake engine is one byte, a page 256."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from exllamav3_adapters.contract import Chat, Finished, GenerationParams, Head
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import EngineDied
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3.capture import CapturedHead
from litellm_exllamav3.packed_tokens import pack_tokens
from litellm_exllamav3.replay import Replay
from litellm_exllamav3.store.records import StoredChain
from litellm_exllamav3.warm_sources import WarmSources

GREEDY = GenerationParams(temperature=0.0, max_tokens=1)
SECRET = "the moon is made of green cheese"


def new_engine(*, cache_size: int = 8192, pin_max_fraction: float = 0.5, seconds_per_page: float = 0.0) -> FakeEngine:
    settings = EngineSettings(
        model_key="m",
        model=ModelOptions(model_dir="demo", max_seq_len=4096, cache_size=cache_size, chunk_size=256),
        memory=MemoryOptions(pin_max_fraction=pin_max_fraction),
    )
    return FakeEngine(settings, seconds_per_prefill_page=seconds_per_page)


def captured(*heads: tuple[str, str]) -> Callable[[], Awaitable[Sequence[CapturedHead]]]:
    async def entries() -> Sequence[CapturedHead]:
        return [
            CapturedHead(
                model_key="m",
                digest=digest,
                head=Head(messages=[{"role": "system", "content": text}]),
                num_tokens=len(text),
                num_bytes=len(text),
                owner="",
                captured_at=0.0,
                written_at=0.0,
            )
            for digest, text in heads
        ]

    return entries


async def replayed(engine: FakeEngine, sources: WarmSources) -> dict[str, object]:
    replay = Replay("m", engine, sources)
    replay.start()
    await replay.wait()
    return replay.stats()


async def cached_tokens(engine: FakeEngine, system: str) -> int:
    chat = Chat(messages=[{"role": "system", "content": system}, {"role": "user", "content": "say: x"}])
    events = [event async for event in engine.generate(await engine.render(chat), GREEDY)]
    assert isinstance(events[-1], Finished)
    return events[-1].cached_tokens


async def test_a_captured_head_is_in_the_cache_before_the_first_request():
    engine = new_engine()
    stats = await replayed(engine, WarmSources(captured=captured(("d", "a" * 2000))))
    assert await cached_tokens(engine, "a" * 2000) == 7 * 256
    assert (stats["state"], stats["items_done"], stats["items_total"]) == ("done", 1, 1)
    assert stats["tokens_warmed"] == stats["tokens_total"] == stats["tokens_done"]


async def test_texts_token_ids_and_chats_of_the_settings_are_replayed_and_pinned():
    engine = new_engine()
    sources = WarmSources(
        texts=["t" * 512],
        token_ids=[tuple(b"i" * 512)],
        chats=[
            Chat(messages=[{"role": "system", "content": "h" * 512}]),
            Chat(messages=[{"role": "user", "content": "u" * 512}]),
        ],
    )
    stats = await replayed(engine, sources)
    assert stats["tokens_pinned"] == 4 * 512
    assert (await engine.stats()).cache_tokens_pinned == 4 * 512
    assert await cached_tokens(engine, "h" * 512) == 512


async def test_configured_prefixes_come_first():
    engine = new_engine(cache_size=4096, seconds_per_page=0.002)
    replay = Replay("m", engine, WarmSources(texts=["t" * 1024], captured=captured(("d", "a" * 1024))))
    replay.start()
    while (await engine.stats()).cache_tokens_pinned == 0:  # noqa: ASYNC110 - a count, not an event
        await asyncio.sleep(0.001)
    assert replay.stats()["tokens_done"] <= 1024 + 256
    await replay.wait()
    assert replay.stats()["items_done"] == 2


async def test_the_budget_counts_captured_heads_only_and_the_most_recent_get_it():
    engine = new_engine()
    sources = WarmSources(
        texts=["t" * 1024], captured=captured(("new", "n" * 600), ("old", "o" * 600)), max_captured_tokens=800
    )
    stats = await replayed(engine, sources)
    assert stats["items_skipped"] == 1
    assert await cached_tokens(engine, "n" * 600) > 0
    assert await cached_tokens(engine, "o" * 600) == 0


async def test_without_a_budget_of_its_own_it_takes_what_the_pinned_prefixes_leave_of_the_cache():
    engine = new_engine(cache_size=4096)
    sources = WarmSources(texts=["t" * 2048], captured=captured(("a", "a" * 1900), ("b", "b" * 1900)))
    stats = await replayed(engine, sources)
    assert stats["items_skipped"] == 1
    assert (await engine.stats()).counters["evictions"] == 0


async def test_a_second_replay_finds_all_of_it_cached():
    engine = new_engine()
    sources = WarmSources(captured=captured(("d", "a" * 2000)))
    await replayed(engine, sources)
    stats = await replayed(engine, sources)
    assert stats["tokens_cached"] == 7 * 256
    assert stats["tokens_warmed"] == stats["tokens_total"] - 7 * 256


async def test_what_cannot_be_rendered_or_does_not_fit_is_skipped_by_name_and_without_its_text(caplog):
    engine = new_engine()
    sources = WarmSources(
        token_ids=[(999,)],
        chats=[Chat(messages=[{"role": "pirate", "content": SECRET}])],
        captured=captured(("0123456789abcdef", SECRET * 300), ("fedcba9876543210", "a" * 600)),
    )
    stats = await replayed(engine, sources)
    assert (stats["state"], stats["items_skipped"], stats["items_done"], stats["items_total"]) == ("done", 3, 4, 4)
    for name in ("warm_prefix_token_ids[0]", "warm_prompts[0]", "captured head 0123456789ab"):
        assert f"skips {name}" in caplog.text
    assert SECRET not in caplog.text
    assert await cached_tokens(engine, "a" * 600) == 512


async def test_pins_beyond_the_fraction_are_counted_in_one_warning(caplog):
    engine = new_engine(cache_size=4096, pin_max_fraction=0.25)
    stats = await replayed(engine, WarmSources(texts=["a" * 1024, "b" * 512]))
    assert stats["tokens_not_pinned"] == 512
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("model m: 512 tokens of the configured prefixes are beyond pin_max_fraction")


async def test_start_and_end_are_in_the_log_with_totals(caplog):
    caplog.set_level(logging.INFO)
    await replayed(new_engine(), WarmSources(captured=captured(("d", "a" * 600), ("e", "a" * 300))))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("model m: replaying 2 of 2 prefixes")
    assert "replay done after" in lines[-1]
    assert "2 of 2 prefixes" in lines[-1]


async def test_progress_is_in_the_log_while_it_runs(caplog):
    caplog.set_level(logging.INFO)
    engine = new_engine(seconds_per_page=0.005)
    replay = Replay("m", engine, WarmSources(captured=captured(("d", "a" * 3000))), log_seconds=0.02)
    replay.start()
    await replay.wait()
    progress = [line for line in caplog.messages if line.startswith("model m: replay: 0 of 1 prefixes")]
    assert 1 <= len(progress) <= 5


async def test_an_empty_replay_says_nothing(caplog):
    caplog.set_level(logging.INFO)
    stats = await replayed(new_engine(), WarmSources())
    assert stats["state"] == "done"
    assert caplog.text == ""


async def test_it_stops_at_any_moment_and_leaves_no_job_behind():
    engine = new_engine(seconds_per_page=0.01)
    replay = Replay("m", engine, WarmSources(captured=captured(("d", "a" * 3000))))
    replay.start()
    await asyncio.sleep(0.03)
    async with asyncio.timeout(0.5):
        await replay.stop()
        await replay.stop()
    assert replay.stats()["state"] == "stopped"
    await asyncio.sleep(0.03)
    assert (await engine.stats()).cache_tokens_used == 0


async def test_it_can_be_stopped_before_it_began():
    replay = Replay("m", new_engine(), WarmSources(captured=captured(("d", "a" * 3000))))
    replay.start()
    await replay.stop()
    await replay.wait()
    assert replay.stats()["items_done"] == 0


async def test_a_request_that_arrives_is_answered_before_the_replay_goes_on():
    engine = new_engine(seconds_per_page=0.01)
    replay = Replay("m", engine, WarmSources(captured=captured(("d", "a" * 3500))))
    replay.start()
    await asyncio.sleep(0.03)
    await cached_tokens(engine, "hello")
    assert replay.stats()["state"] == "prefilling"
    await replay.wait()
    assert replay.stats()["state"] == "done"


async def test_a_head_that_is_forgotten_while_it_is_replayed_leaves_the_replay_and_the_others_stay():
    engine = new_engine(seconds_per_page=0.01)
    replay = Replay("m", engine, WarmSources(captured=captured(("d", "a" * 3000), ("e", "e" * 600))))
    replay.start()
    await asyncio.sleep(0.03)
    await replay.drop("d")
    await replay.wait()
    stats = replay.stats()
    assert (stats["state"], stats["items_skipped"], stats["items_done"]) == ("done", 1, 2)
    assert await cached_tokens(engine, "e" * 600) == 512


async def test_a_head_that_is_forgotten_before_its_turn_is_not_replayed():
    engine = new_engine(seconds_per_page=0.005)
    replay = Replay("m", engine, WarmSources(captured=captured(("d", "a" * 1000), ("e", "e" * 600))))
    replay.start()
    await asyncio.sleep(0.01)
    await replay.drop("e")
    await replay.wait()
    assert await cached_tokens(engine, "e" * 600) == 0


async def test_an_engine_that_dies_under_it_is_reported_once():
    engine = new_engine(seconds_per_page=0.01)
    replay = Replay("m", engine, WarmSources(captured=captured(("d", "a" * 3000), ("e", "e" * 600))))
    deaths: list[EngineDied] = []
    replay.start(deaths.append)
    await asyncio.sleep(0.03)
    engine._crash()
    await replay.wait()
    assert replay.stats()["state"] == "failed"
    assert len(deaths) == 1


@pytest.mark.parametrize("fault", [OSError("disk"), KeyError("x")])
async def test_a_fault_of_the_store_ends_the_replay_and_nothing_else(fault):
    async def broken() -> Sequence[CapturedHead]:
        raise fault

    stats = await replayed(new_engine(), WarmSources(captured=broken))
    assert stats["state"] == "failed"


# Chains, which engines captured.


def written(digest: str, text: str, written_at: float, **changes: Any) -> StoredChain:
    return replace(
        StoredChain(
            model_key="m",
            cache_fingerprint=new_engine().info.cache_fingerprint,
            digest=digest,
            token_ids=pack_tokens(text.encode()),
            num_tokens=len(text),
            credit=2.0,
            written_at=written_at,
        ),
        **changes,
    )


def chains(*stored: StoredChain) -> Callable[[], Awaitable[Sequence[StoredChain]]]:
    async def entries() -> Sequence[StoredChain]:
        return stored

    return entries


async def in_cache(engine: FakeEngine, text: str) -> int:
    events = [event async for event in engine.generate(await engine.tokenize(text + "!"), GREEDY)]
    assert isinstance(events[-1], Finished)
    return events[-1].cached_tokens


async def test_chains_come_back_and_are_not_pinned() -> None:
    engine = new_engine()
    stats = await replayed(engine, WarmSources(chains=chains(written("c", "c" * 1024, 1.0))))
    assert await in_cache(engine, "c" * 1024) == 1024
    assert (stats["items_done"], stats["tokens_pinned"]) == (1, 0)


async def test_chains_and_heads_share_the_budget_in_the_order_of_their_last_use() -> None:
    engine = new_engine()
    sources = WarmSources(
        captured=captured(("head", "h" * 600)),  # written at 0
        chains=chains(written("new", "n" * 512, 9.0), written("old", "o" * 512, -9.0)),
        max_captured_tokens=512 + 700,
    )
    stats = await replayed(engine, sources)
    assert stats["items_skipped"] == 1
    assert await in_cache(engine, "n" * 512) == 512
    assert await cached_tokens(engine, "h" * 600) == 512
    assert await in_cache(engine, "o" * 512) == 0


async def test_a_chain_that_a_head_begins_with_costs_nothing_more() -> None:
    engine = new_engine()
    start = "<|im_start|>system\n" + "h" * 600
    sources = WarmSources(captured=captured(("head", "h" * 600)), chains=chains(written("c", start[:512], 1.0)))
    stats = await replayed(engine, sources)
    assert (stats["items_folded"], stats["items_done"], stats["items_total"]) == (1, 2, 2)


async def test_chains_of_another_fingerprint_are_left_alone() -> None:
    engine = new_engine()
    other = written("c", "c" * 512, 1.0, cache_fingerprint="other weights")
    assert (await replayed(engine, WarmSources(chains=chains(other))))["items_total"] == 0


async def test_damaged_chains_are_skipped_by_name_and_the_rest_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    engine = new_engine()
    sources = WarmSources(
        chains=chains(
            written("bytes", "", 5.0, token_ids=b"0123456"),
            written("short", "s" * 512, 4.0, num_tokens=768),
            written("vocabulary", "", 3.0, token_ids=pack_tokens([300] * 256), num_tokens=256),
            written("huge", "", 2.0, token_ids=pack_tokens([2**32 - 1] * 256), num_tokens=256),
            written("good", "g" * 512, 1.0),
        )
    )
    stats = await replayed(engine, sources)
    assert (stats["state"], stats["items_skipped"], stats["items_done"]) == ("done", 4, 5)
    for name in ("bytes", "short", "vocabulary", "huge"):
        assert f"skips captured chain {name}" in caplog.text
    assert await in_cache(engine, "g" * 512) == 512
