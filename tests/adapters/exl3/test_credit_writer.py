"""The thread that writes page credit: in batches, whatever the disk says."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exllamav3_adapters.exl3.credit_file import CreditFile, StoredCredit
from exllamav3_adapters.exl3.credit_writer import CreditWriter
from exllamav3_adapters.policies.aging_credit import PageCredit

LIMIT_SECONDS = 10.0
NEVER = 3600.0
Make = Callable[..., CreditWriter]


def page(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def stored(number: int, weight: float = 1.0) -> StoredCredit:
    return StoredCredit(PageCredit(page(number), None, weight), 1000.0)


def credit_file(path: Path) -> CreditFile:
    return CreditFile(path, fingerprint="f", half_life_seconds=60.0, max_entries=100)


def on_disk(path: Path) -> dict[bytes, float]:
    file = credit_file(path)
    try:
        return {one.credit.page: one.credit.weight for one in file.read()}
    finally:
        file.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credit" / "m.db"


@pytest.fixture
def make(path: Path) -> Iterator[Make]:
    writers: list[CreditWriter] = []

    def make(flush_seconds: float = 0.02, retry_seconds: float = 0.02) -> CreditWriter:
        writer = CreditWriter(
            credit_file(path), max_pending=100, flush_seconds=flush_seconds, retry_seconds=retry_seconds
        )
        writers.append(writer)
        return writer

    yield make
    for writer in writers:
        writer.close()


def test_credit_is_on_disk_soon_without_a_close(make: Make, path: Path) -> None:
    writer = make()
    assert writer.start() == []
    writer.put([stored(1)])
    wait_for(lambda: on_disk(path) == {page(1): 1.0})


def test_what_waits_is_written_at_close(make: Make, path: Path) -> None:
    writer = make(flush_seconds=NEVER)
    writer.start()
    writer.put([stored(1), stored(2)])
    writer.put([stored(1, weight=2.0)])
    writer.close()
    assert on_disk(path) == {page(1): 2.0, page(2): 1.0}


def test_the_next_start_reads_it(make: Make) -> None:
    first = make()
    first.start()
    first.put([stored(1)])
    first.close()
    assert make().start() == [stored(1)]


def test_what_was_forgotten_is_gone_when_it_has_settled(make: Make, path: Path) -> None:
    writer = make(flush_seconds=NEVER)
    writer.start()
    writer.put([stored(1), stored(2)])
    writer.settled().result(LIMIT_SECONDS)
    writer.put([stored(2, weight=2.0)])
    writer.forget([page(2)])
    writer.settled().result(LIMIT_SECONDS)
    assert on_disk(path) == {page(1): 1.0}


def test_a_page_that_returns_after_it_was_forgotten_is_kept(make: Make, path: Path) -> None:
    writer = make(flush_seconds=NEVER)
    writer.start()
    writer.put([stored(1)])
    writer.forget([page(1)])
    writer.put([stored(1, weight=3.0)])
    writer.settled().result(LIMIT_SECONDS)
    assert on_disk(path) == {page(1): 3.0}


def test_a_disk_that_refuses_is_logged_once_and_tried_again(
    make: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("where the folder should be")
    writer = make()
    assert writer.start() == []
    writer.put([stored(1), stored(2)])
    writer.settled().result(LIMIT_SECONDS)
    writer.put([stored(1, weight=2.0)])
    writer.settled().result(LIMIT_SECONDS)
    assert caplog.text.count("kept in memory only") == 1
    path.parent.unlink()
    wait_for(lambda: path.exists() and on_disk(path) == {page(1): 2.0, page(2): 1.0})


def test_what_was_forgotten_while_the_disk_refused_is_forgotten_later(make: Make, path: Path) -> None:
    first = make()
    first.start()
    first.put([stored(1), stored(2)])
    first.close()
    aside = path.parent.rename(path.parent.with_name("aside"))
    path.parent.write_text("in the way")
    writer = make(flush_seconds=NEVER, retry_seconds=NEVER)
    writer.start()
    writer.forget([page(1)])
    writer.settled().result(LIMIT_SECONDS)
    path.parent.unlink()
    aside.rename(path.parent)
    writer.settled().result(LIMIT_SECONDS)
    assert on_disk(path) == {page(2): 1.0}


def test_credit_that_waits_for_a_failing_disk_is_bounded(make: Make, path: Path) -> None:
    path.parent.write_text("in the way")
    writer = make(retry_seconds=NEVER)
    writer.start()
    for number in range(250):
        writer.put([stored(number)])
    writer.settled().result(LIMIT_SECONDS)
    path.parent.unlink()
    writer.close()
    assert set(on_disk(path)) == {page(number) for number in range(150, 250)}


def test_a_claim_waits_for_no_disk(make: Make, path: Path) -> None:
    """Another process holds the file, as long as it likes."""
    writer = make()
    writer.start()
    writer.put([stored(0)])
    writer.settled().result(LIMIT_SECONDS)
    blocker = credit_file(path)._open()
    blocker.execute("BEGIN EXCLUSIVE")
    started = time.perf_counter()
    for number in range(50):
        writer.put([stored(number)])
        writer.forget([page(number + 50)])
    assert time.perf_counter() - started < 0.5
    blocker.execute("ROLLBACK")
    blocker.close()
    writer.close()
    assert len(on_disk(path)) == 50
