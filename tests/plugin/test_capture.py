from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.contract import Head
from litellm_exllamav3.capture import Capture, Sighting
from litellm_exllamav3.head import RequestHead, chat_head, request_head
from litellm_exllamav3.nonces import DEFAULT_NONCES, NonceRules, without_nonces

MODEL = "smollm2"
HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, kw_only=True)
class Rules:
    enabled: bool = True
    min_conversations: int = 2
    min_requests: int = 10
    min_tokens: int = 8
    half_life_hours: float = 24
    max_entries: int = 256
    max_entries_per_key: int = 64
    max_mebibytes: float = 64
    max_age_days: float = 30
    flush_seconds: float = 60
    nonces: tuple[str, ...] = DEFAULT_NONCES


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """Captures over one folder, opened one after another."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    opened: list[Capture] = field(default_factory=list)

    async def open(self, **rules: Any) -> Capture:
        capture = await Capture.open(self.folder, {MODEL: Rules(**rules)}, self.clock)
        self.opened.append(capture)
        return capture

    def bytes_of_all_files(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "state")
    yield world
    for capture in world.opened:
        await capture.close()


def messages(text: str, turns: int = 0) -> list[dict[str, Any]]:
    chat = [{"role": "system", "content": text}, {"role": "user", "content": "hi"}]
    return chat + turns * [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "go on"}]


def seen(text: str, turns: int = 0, tools: list[Any] | None = None) -> RequestHead:
    head = request_head({"messages": messages(text, turns), "tools": tools}, "acompletion")
    assert head is not None
    return head


def long(name: str) -> str:
    return f"{name}: you are an assistant with a good many instructions. " * 3


def kept(text: str) -> Head:
    return chat_head(messages(text), None)


def start(capture: Capture, text: str, owner: str = "key-1") -> Sighting:
    """A conversation starts with this head, and is captured if it is due."""
    sighting = capture.observe(MODEL, seen(text), owner)
    if capture.wants(sighting):
        assert capture.keep(sighting, kept(text), 100)
    return sighting


def learn(capture: Capture, text: str, owner: str = "key-1") -> Sighting:
    start(capture, text, owner)
    return start(capture, text, owner)


async def texts(capture: Capture) -> list[str]:
    return [entry.head.messages[0]["content"] for entry in await capture.entries(MODEL)]


async def test_a_head_is_wanted_at_its_second_conversation(world: World) -> None:
    capture = await world.open()
    first = capture.observe(MODEL, seen(long("a")), "key-1")
    assert (first.due, capture.wants(first)) == (False, False)
    second = capture.observe(MODEL, seen(long("a")), "key-1")
    assert (second.due, second.known, capture.wants(second)) == (True, False, True)
    assert capture.keep(second, kept(long("a")), 100)
    assert not capture.wants(second)
    third = capture.observe(MODEL, seen(long("a")), "key-1")
    assert (third.due, third.known, capture.wants(third)) == (True, True, False)


async def test_later_turns_count_as_requests_only(world: World) -> None:
    capture = await world.open()
    for turns in range(9):
        assert not capture.observe(MODEL, seen(long("a"), turns), "key-1").due
    assert capture.observe(MODEL, seen(long("a"), 9), "key-1").due


async def test_a_captured_head_survives_a_restart(world: World) -> None:
    first = await world.open()
    tool = {"type": "function", "function": {"name": "ls", "description": "größe 文件", "parameters": {"b": 1, "a": 2}}}
    head = Head(messages=({"role": "system", "content": long("größe 🙂")},), tools=(tool,))
    first.observe(MODEL, seen(long("größe 🙂"), tools=[tool]), "key-1")
    assert first.keep(first.observe(MODEL, seen(long("größe 🙂"), tools=[tool]), "key-1"), head, 123)
    before = await first.entries(MODEL)
    await first.close()
    second = await world.open()
    (entry,) = await second.entries(MODEL)
    assert [entry] == before
    assert (entry.head, entry.num_tokens, entry.model_key) == (head, 123, MODEL)
    assert list(entry.head.tools[0]["function"]["parameters"]) == ["b", "a"]
    assert second.observe(MODEL, seen(long("größe 🙂"), tools=[tool]), "key-1").known


async def test_counts_survive_a_restart(world: World) -> None:
    first = await world.open()
    start(first, long("a"))
    await first.close()
    world.clock.now += HOUR
    second = await world.open()
    assert start(second, long("a")).due


async def test_two_starts_one_half_life_apart_are_two(world: World) -> None:
    capture = await world.open()
    start(capture, long("a"))
    world.clock.now += DAY
    assert start(capture, long("a")).due


async def test_two_starts_three_half_lives_apart_are_not(world: World) -> None:
    capture = await world.open()
    start(capture, long("a"))
    world.clock.now += 3 * DAY
    assert not start(capture, long("a")).due


async def test_a_changing_nonce_line_is_captured_once_and_without_it(world: World) -> None:
    capture = await world.open()
    rules = NonceRules(DEFAULT_NONCES)
    for number in range(6):
        chat = messages(f"x-anthropic-billing-header: cc_version=2.1; cch={number:05x};\n{long('claude')}")
        head = request_head({"messages": chat}, "acompletion")
        assert head is not None
        sighting = capture.observe(MODEL, head, "key-1")
        if capture.wants(sighting):
            capture.keep(sighting, chat_head(without_nonces(chat, rules), None), 100)
    assert await texts(capture) == [long("claude")]
    await capture.flush()
    assert b"cch=" not in world.bytes_of_all_files()


async def test_two_heads_that_share_a_beginning_are_both_kept(world: World) -> None:
    capture = await world.open()
    for text in (long("a"), long("a") + "And be brief."):
        learn(capture, text)
    assert sorted(await texts(capture)) == sorted([long("a"), long("a") + "And be brief."])


async def test_a_head_of_100_kilobytes_is_kept_whole(world: World) -> None:
    text = "größe 文件 🙂 " * 5000
    capture = await world.open()
    learn(capture, text)
    assert await texts(capture) == [text]


async def test_a_short_head_is_not_counted(world: World) -> None:
    capture = await world.open(min_tokens=100)
    for _ in range(20):
        sighting = capture.observe(MODEL, seen("short"), "key-1")
        assert not sighting.due
    assert not capture.keep(sighting, kept("short"), 100)
    assert capture.stats().models[MODEL].tracked == 0


async def test_a_head_of_too_few_tokens_is_refused_and_not_asked_for_again(world: World) -> None:
    capture = await world.open(min_tokens=20)
    capture.observe(MODEL, seen(long("a")), "key-1")
    sighting = capture.observe(MODEL, seen(long("a")), "key-1")
    assert not capture.keep(sighting, kept(long("a")), 19)
    assert not capture.wants(capture.observe(MODEL, seen(long("a")), "key-1"))
    assert await capture.entries(MODEL) == []


async def test_nothing_is_counted_where_capture_is_off(world: World) -> None:
    capture = await world.open(enabled=False)
    for _ in range(3):
        sighting = capture.observe(MODEL, seen(long("a")), "key-1")
        assert (sighting.due, capture.wants(sighting)) == (False, False)
    await capture.close()
    assert long("a").encode() not in world.bytes_of_all_files()


async def test_an_unknown_model_is_not_counted(world: World) -> None:
    capture = await world.open()
    sighting = capture.observe("other", seen(long("a")), "key-1")
    assert not capture.wants(sighting)
    assert await capture.entries("other") == []


async def test_two_requests_at_once_keep_a_head_once(world: World) -> None:
    capture = await world.open()
    start(capture, long("a"))
    one, other = (capture.observe(MODEL, seen(long("a")), "key-1") for _ in range(2))
    assert capture.wants(one)
    assert capture.wants(other)
    assert capture.keep(one, kept(long("a")), 100)
    assert not capture.keep(other, kept(long("a")), 100)


async def test_entries_come_most_recently_seen_first(world: World) -> None:
    capture = await world.open()
    for name in "abc":
        learn(capture, long(name))
        world.clock.now += 1
    start(capture, long("a"))
    assert await texts(capture) == [long("a"), long("c"), long("b")]
    await capture.close()
    assert await texts(await world.open()) == [long("a"), long("c"), long("b")]


async def test_a_head_that_changes_after_it_was_kept_is_kept_as_it_was(world: World) -> None:
    capture = await world.open()
    start(capture, long("a"))
    sighting = capture.observe(MODEL, seen(long("a")), "key-1")
    chat = messages(long("a"))
    capture.keep(sighting, chat_head(chat, None), 100)
    chat[0]["content"] = "changed"
    assert await texts(capture) == [long("a")]


async def test_what_is_not_quite_json_is_kept(world: World) -> None:
    capture = await world.open()
    head = Head(messages=({"role": "system", "content": "\ud800 lone"},), tools=({"default": 2**70},))
    start(capture, long("a"))
    assert capture.keep(capture.observe(MODEL, seen(long("a")), "key-1"), head, 100)
    (entry,) = await capture.entries(MODEL)
    assert entry.head == head


async def test_what_is_not_json_is_refused(world: World) -> None:
    capture = await world.open()
    start(capture, long("a"))
    sighting = capture.observe(MODEL, seen(long("a")), "key-1")
    assert not capture.keep(sighting, Head(tools=({"default": object()},)), 100)


async def test_the_least_used_head_leaves_a_full_store(world: World) -> None:
    capture = await world.open(max_entries=2)
    learn(capture, long("hot"))
    for _ in range(5):
        start(capture, long("hot"))
    learn(capture, long("cold"))
    await capture.flush()
    learn(capture, long("new"))
    await capture.flush()
    assert sorted(await texts(capture)) == sorted([long("hot"), long("new")])
    assert not capture.observe(MODEL, seen(long("cold")), "key-1").known


async def test_one_key_cannot_crowd_out_the_rest(world: World) -> None:
    capture = await world.open(max_entries=10, max_entries_per_key=3)
    learn(capture, long("mine"), "key-1")
    for number in range(20):
        for _ in range(5):
            start(capture, long(f"flood {number}"), "key-2")
        await capture.flush()
    found = await texts(capture)
    assert long("mine") in found
    assert len(found) == 4


async def test_the_bytes_of_all_heads_are_bounded(world: World) -> None:
    capture = await world.open(max_mebibytes=0.1)
    for name in "abcdef":
        learn(capture, name * 30_000)
        await capture.flush()
    assert sum(entry.num_bytes for entry in await capture.entries(MODEL)) <= 0.1 * (1 << 20)
    assert len(await capture.entries(MODEL)) == 3


async def test_a_head_that_no_budget_could_hold_is_refused(world: World) -> None:
    capture = await world.open(max_mebibytes=0.01)
    start(capture, "a" * 20_000)
    sighting = capture.observe(MODEL, seen("a" * 20_000), "key-1")
    assert not capture.keep(sighting, kept("a" * 20_000), 100)
    assert not capture.wants(sighting)


async def test_an_unused_head_goes_with_age_and_a_used_one_stays(world: World) -> None:
    capture = await world.open(max_age_days=30)
    learn(capture, long("unused"))
    learn(capture, long("used"))
    await capture.flush()
    world.clock.now += 29 * DAY
    start(capture, long("used"))
    await capture.flush()
    world.clock.now += 2 * DAY
    start(capture, long("any"))
    await capture.flush()
    assert await texts(capture) == [long("used")]


async def test_forget_leaves_no_byte(world: World) -> None:
    capture = await world.open()
    for name in ("secret", "other", "third"):
        learn(capture, long(name) * 40)
    await capture.flush()
    assert long("secret").encode() in world.bytes_of_all_files()
    (digest,) = [e.digest for e in await capture.entries(MODEL) if e.head.messages[0]["content"].startswith("secret")]
    forgotten = await capture.forget(MODEL, digest)
    assert forgotten is not None
    assert forgotten.head == kept(long("secret") * 40)
    left = world.bytes_of_all_files()
    assert b"secret" not in left
    assert digest.encode() not in left
    assert sorted(await texts(capture)) == sorted([long("other") * 40, long("third") * 40])
    assert await capture.forget(MODEL, digest) is None


async def test_forget_finds_a_head_that_still_waits(world: World) -> None:
    capture = await world.open()
    digest = learn(capture, long("secret")).digest
    assert await capture.forget(MODEL, digest) is not None
    await capture.close()
    assert b"secret" not in world.bytes_of_all_files()


async def test_forget_also_removes_a_damaged_file_that_was_moved_aside(world: World) -> None:
    first = await world.open()
    learn(first, long("secret"))
    await first.close()
    store = world.folder / "prefixes.db"
    store.write_bytes(b"\0" * 100 + store.read_bytes()[100:])
    second = await world.open()
    assert b"secret" in world.bytes_of_all_files()
    await second.forget(MODEL, learn(second, long("secret")).digest)
    assert b"secret" not in world.bytes_of_all_files()


async def test_a_forgotten_head_is_not_kept_by_a_request_under_way(world: World) -> None:
    capture = await world.open()
    start(capture, long("a"))
    under_way = capture.observe(MODEL, seen(long("a")), "key-1")
    await capture.forget(MODEL, under_way.digest)
    assert not capture.keep(under_way, kept(long("a")), 100)
    assert learn(capture, long("a")).due


async def test_a_key_never_reaches_the_disk(world: World) -> None:
    capture = await world.open()
    learn(capture, long("a"), owner="sk-very-secret")
    await capture.close()
    assert b"sk-very-secret" not in world.bytes_of_all_files()


async def test_close_writes_what_waits_and_may_be_repeated(world: World) -> None:
    capture = await world.open()
    learn(capture, long("a"))
    await capture.close()
    await capture.close()
    assert long("a").encode() in world.bytes_of_all_files()


async def test_stats_count_heads_and_sightings(world: World) -> None:
    capture = await world.open()
    learn(capture, long("a"))
    start(capture, long("b"))
    stats = capture.stats()
    assert (stats.models[MODEL].captured, stats.models[MODEL].tracked) == (1, 2)
    assert (stats.models[MODEL].sightings, stats.models[MODEL].kept) == (3, 1)
    assert (stats.writable, stats.pending_heads) == (True, 1)
    await capture.flush()
    assert capture.stats().pending_heads == 0


async def test_counts_are_written_without_being_asked(world: World) -> None:
    first = await world.open(flush_seconds=0.02)
    learn(first, long("a"))
    second = await world.open()
    for _ in range(200):
        if await second.entries(MODEL):
            break
    assert await texts(second) == [long("a")]


async def test_a_row_that_cannot_be_read_does_not_hide_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    capture = await world.open()
    learn(capture, long("a"))
    await capture.flush()
    with contextlib.closing(sqlite3.connect(world.folder / "prefixes.db")) as connection, connection:
        connection.execute("UPDATE heads SET content = x'00'")
    learn(capture, long("b"))
    assert await texts(capture) == [long("b")]
    assert "cannot be read" in caplog.text


async def test_capture_goes_on_in_memory_while_the_store_cannot_be_written(world: World) -> None:
    world.folder.write_text("in the way")
    capture = await world.open()
    learn(capture, long("a"))
    assert not await capture.flush()
    assert await texts(capture) == [long("a")]
    assert start(capture, long("a")).known
    assert not capture.stats().writable
    world.folder.unlink()
    assert await capture.flush()
    await capture.close()
    again = await world.open()
    assert await texts(again) == [long("a")]


async def test_a_lost_store_is_learnt_again_and_keeps_its_counts(world: World) -> None:
    capture = await world.open()
    learn(capture, long("hot"))
    learn(capture, long("other"))
    start(capture, long("once"))
    await capture.flush()
    for path in world.folder.iterdir():
        path.unlink()
    assert start(capture, long("hot")).known
    await capture.flush()
    assert await texts(capture) == []
    for name in ("hot", "other"):
        assert not start(capture, long(name)).known
    assert sorted(await texts(capture)) == [long("hot"), long("other")]
    await capture.close()
    assert start(await world.open(), long("once")).due


async def test_a_head_forgotten_by_another_process_is_learnt_again(world: World) -> None:
    proxy, command = await world.open(), await world.open()
    digest = learn(proxy, long("a")).digest
    await proxy.flush()
    assert await command.forget(MODEL, digest) is not None
    start(proxy, long("a"))
    await proxy.flush()
    assert await texts(proxy) == []
    start(proxy, long("a"))
    assert await texts(proxy) == [long("a")]


async def test_the_loop_never_touches_the_disk(world: World) -> None:
    loop_thread = threading.get_ident()
    touched: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event.partition(".")[0] in ("open", "os", "sqlite3") and str(world.folder) in str(arguments):
            touched.append(f"{event} on the {'loop' if threading.get_ident() == loop_thread else 'store'}")

    sys.addaudithook(watch)
    try:
        capture = await world.open(flush_seconds=0)
        digest = learn(capture, long("a")).digest
        await capture.flush()
        await capture.entries(MODEL)
        await capture.forget(MODEL, digest)
        await capture.close()
    finally:
        watching = False
    assert "sqlite3.connect on the store" in touched
    assert not [event for event in touched if event.endswith("loop")]


async def test_no_prompt_reaches_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        capture = await world.open()
        digest = learn(capture, long("secret"), owner="sk-secret").digest
        await capture.flush()
        await capture.forget(MODEL, digest)
        world.folder.joinpath("prefixes.db").write_bytes(b"damaged" * 1000)
        learn(capture, long("secret"), owner="sk-secret")
        await capture.flush()
        await capture.close()
    assert digest in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
async def test_memory_claims_nothing_that_the_disk_lacks_when_all_happens_at_once(world: World, seed: int) -> None:
    capture = await world.open(flush_seconds=0.001, max_entries=6)
    rng = random.Random(seed)
    found: dict[str, str] = {}

    async def learner() -> None:
        while busy:
            text = long(f"head {rng.randrange(12)}")
            found[start(capture, text, owner=f"key-{rng.randrange(3)}").digest] = text
            await asyncio.sleep(0.001)  # the store's thread waits 5 ms for each step beside a loop that never rests

    async def forgetter() -> None:
        for _ in range(100):
            await capture.forget(MODEL, rng.choice([*found, "unknown"]))

    async def reader() -> None:
        for _ in range(100):
            assert len(await capture.entries(MODEL)) <= 6 + 12
            await capture.flush()

    busy = True
    learners = asyncio.gather(learner(), learner())
    await asyncio.gather(forgetter(), reader())
    busy = False
    await learners
    learn(capture, long("last"))
    await capture.flush()
    await asyncio.sleep(0)
    on_disk = {entry.digest for entry in await capture.entries(MODEL)}
    in_memory = {digest for digest, text in found.items() if capture.observe(MODEL, seen(text), "key-1").known}
    # The other way round is allowed: a head of which late news says it was removed is captured again, to no harm.
    assert in_memory <= on_disk
    assert 0 < len(on_disk) <= 6


def test_a_process_that_forgets_to_close_ends_at_once(tmp_path: Path) -> None:
    script = f"""
import asyncio
from pathlib import Path
from litellm_exllamav3.capture import Capture
asyncio.run(Capture.open(Path({str(tmp_path)!r}), {{}}))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
