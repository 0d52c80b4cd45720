"""What the store keeps of the prefixes that an engine captured. Real SQLite; times are given."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from exllamav3_adapters.contract import StoredPrefix
from litellm_exllamav3.capture import Capture
from litellm_exllamav3.capture_section import CaptureSection
from litellm_exllamav3.packed_tokens import holds_tokens, pack_tokens, unpack_tokens
from litellm_exllamav3.store.records import StoredChain

MODEL = "m"
T = 1_800_000_000.0
DAY = 86_400.0


class World:
    """One state folder, opened again and again, and the time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = T
        self.captures: list[Capture] = []

    async def open(self, max_chains: int = 8, **rules: float) -> Capture:
        section = CaptureSection(flush_seconds=60, **rules)
        capture = await Capture.open(self.folder, {MODEL: section}, lambda: self.now, max_chains={MODEL: max_chains})
        self.captures.append(capture)
        return capture

    def bytes_on_disk(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "state")
    yield world
    for capture in world.captures:
        await capture.close()


def chain(
    digest: str, written_at: float = T, fingerprint: str = "fp", token_ids: tuple[int, ...] | None = None
) -> StoredPrefix:
    tokens = token_ids if token_ids is not None else tuple(range(1000, 1512))
    return StoredPrefix(
        digest=digest, token_ids=tokens, credit=2.0, written_at=written_at, cache_fingerprint=fingerprint
    )


def named(digest: str) -> Callable[[StoredChain], bool]:
    return lambda one: one.digest == digest


async def digests(capture: Capture) -> list[str]:
    return [one.digest for one in await capture.chains.entries(MODEL)]


def test_packed_tokens_are_four_bytes_each_and_come_back() -> None:
    assert pack_tokens((1, 2**32 - 1)) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert unpack_tokens(pack_tokens((7, 0, 151_000))) == (7, 0, 151_000)
    assert unpack_tokens(pack_tokens(b"abcd")) == tuple(b"abcd")


def test_bytes_that_are_no_whole_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack_tokens(b"\0" * 7)


def test_tokens_are_found_at_token_boundaries_only() -> None:
    packed = pack_tokens((0x0100_0000, 0x0000_0002, 9, 2))
    assert holds_tokens(packed, pack_tokens((9, 2)))
    assert not holds_tokens(packed, pack_tokens((0x0000_0201,)))
    assert holds_tokens(packed, pack_tokens((0x0100_0000,)))


async def test_chains_are_there_after_a_restart_most_recently_written_first(world: World) -> None:
    first = await world.open()
    await first.chains.keep(MODEL, [chain("old", T - 9), chain("new", T, token_ids=(5,) * 256)])
    await first.close()
    second = await world.open()
    new, old = await second.chains.entries(MODEL)
    assert (new.digest, old.digest) == ("new", "old")
    assert unpack_tokens(new.token_ids) == (5,) * 256
    assert (new.cache_fingerprint, new.num_tokens, new.credit, new.written_at) == ("fp", 256, 2.0, T)


async def test_a_chain_that_is_written_again_moves_to_the_front(world: World) -> None:
    capture = await world.open()
    await capture.chains.keep(MODEL, [chain("a", T - 9), chain("b", T - 5)])
    await capture.flush()
    await capture.chains.keep(MODEL, [chain("a", T)])
    assert await digests(capture) == ["a", "b"]


async def test_the_ones_written_longest_ago_leave_for_new_ones(world: World) -> None:
    capture = await world.open(max_chains=2)
    await capture.chains.keep(MODEL, [chain(f"{number}", T + number) for number in range(5)])
    await capture.flush()
    assert await digests(capture) == ["4", "3"]


async def test_another_fingerprint_has_its_own_places_until_it_is_too_old(world: World) -> None:
    capture = await world.open(max_chains=1, max_age_days=30)
    await capture.chains.keep(MODEL, [chain("a", T - 1), chain("a", T, fingerprint="other")])
    await capture.flush()
    assert await digests(capture) == ["a", "a"]
    await capture.close()
    world.now = T + 30 * DAY - 0.5
    (left,) = await (await world.open(max_chains=1, max_age_days=30)).chains.entries(MODEL)
    assert left.cache_fingerprint == "other"


async def test_chains_and_heads_do_not_crowd_each_other_out_and_bytes_are_bounded(world: World) -> None:
    capture = await world.open(max_mebibytes=3 * 512 * 4 / 2**20)
    await capture.chains.keep(MODEL, [chain(f"{number}", T + number) for number in range(5)])
    await capture.flush()
    assert await digests(capture) == ["4", "3", "2"]


async def test_a_chain_larger_than_all_may_be_is_not_kept(world: World) -> None:
    capture = await world.open(max_mebibytes=1024 / 2**20)
    await capture.chains.keep(MODEL, [chain("a", T), chain("b", T - 1, token_ids=(1,) * 256)])
    assert await digests(capture) == ["b"]


async def test_what_is_no_token_is_passed_over_with_a_line_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    capture = await world.open()
    await capture.chains.keep(MODEL, [chain("bad", token_ids=(-1,) * 256), chain("good")])
    assert await digests(capture) == ["good"]
    assert "chain bad" in caplog.text


async def test_a_forgotten_chain_leaves_no_byte_under_any_fingerprint(world: World) -> None:
    capture = await world.open()
    secret = tuple(range(70_000, 70_512))
    await capture.chains.keep(
        MODEL,
        [chain("s", T, token_ids=secret), chain("s", T, "other", token_ids=secret), chain("t", T - 1)],
    )
    await capture.flush()
    assert pack_tokens(secret[:64]) in world.bytes_on_disk()
    assert len(await capture.chains.forget(MODEL, named("s"))) == 2
    assert pack_tokens(secret[:64]) not in world.bytes_on_disk()
    assert await digests(capture) == ["t"]


async def test_a_chain_that_still_waits_can_be_forgotten(world: World) -> None:
    capture = await world.open()
    await capture.chains.keep(MODEL, [chain("a")])
    assert capture.stats().pending_chains == 1
    (gone,) = await capture.chains.forget(MODEL, named("a"))
    assert (gone.digest, capture.stats().pending_chains) == ("a", 0)
    assert await digests(capture) == []


async def test_stats_count_kept_and_waiting_chains(world: World) -> None:
    capture = await world.open()
    await capture.chains.keep(MODEL, [chain("a"), chain("b")])
    assert (capture.stats().models[MODEL].chains, capture.stats().pending_chains) == (0, 2)
    await capture.flush()
    assert (capture.stats().models[MODEL].chains, capture.stats().pending_chains) == (2, 0)
    await capture.chains.forget(MODEL, named("b"))
    assert capture.stats().models[MODEL].chains == 1
    await capture.close()
    assert (await world.open()).stats().models[MODEL].chains == 1


async def test_what_waits_while_nothing_can_be_written_is_bounded(world: World) -> None:
    world.folder.write_text("a file where the folder should be")
    capture = await world.open(max_chains=2)
    await capture.chains.keep(MODEL, [chain(f"{number}", T + number) for number in range(5)])
    assert not await capture.flush()
    assert await digests(capture) == ["4", "3"]


async def test_a_model_that_is_no_longer_configured_keeps_its_chains_for_their_age(world: World) -> None:
    capture = await world.open()
    await capture.chains.keep("gone", [chain("young", T), chain("old", T - 31 * DAY)])
    await capture.close()
    await (await world.open()).close()
    with closing(sqlite3.connect(world.folder / "prefixes.db")) as connection:
        assert connection.execute("SELECT digest FROM prefixes").fetchall() == [("young",)]
