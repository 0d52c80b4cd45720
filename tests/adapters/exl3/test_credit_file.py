"""Page credit on disk: what survives, what must not, and what may go wrong."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from pathlib import Path

import pytest

from exllamav3_adapters.exl3.credit_file import CreditFile, StoredCredit
from exllamav3_adapters.policies.aging_credit import PageCredit

MAX_ENTRIES = 4000


def page(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def stored(number: int, weight: float = 1.0, at: float = 1000.0, parent: int | None = None) -> StoredCredit:
    return StoredCredit(PageCredit(page(number), None if parent is None else page(parent), weight), at)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credit" / "m.db"


def open_file(path: Path, fingerprint: str = "f", max_entries: int = MAX_ENTRIES) -> CreditFile:
    return CreditFile(path, fingerprint=fingerprint, half_life_seconds=60.0, max_entries=max_entries)


def written(path: Path, *batch: StoredCredit) -> None:
    file = open_file(path)
    file.write(batch)
    file.close()


def read(path: Path, fingerprint: str = "f") -> list[StoredCredit]:
    file = open_file(path, fingerprint)
    try:
        return file.read()
    finally:
        file.close()


def bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


def test_what_was_written_is_read_the_coldest_first(path: Path) -> None:
    cold, warm = stored(1, weight=3.0, at=0.0), stored(2, weight=1.0, at=200.0, parent=1)
    written(path, warm, cold)
    assert read(path) == [cold, warm]


def test_a_later_weight_replaces_an_earlier_one(path: Path) -> None:
    written(path, stored(1, weight=1.0))
    written(path, stored(1, weight=2.0))
    assert [one.credit.weight for one in read(path)] == [2.0]


def test_only_the_owner_can_read_it(path: Path) -> None:
    written(path, stored(1))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    written(path, stored(2))
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_of_a_forgotten_page_is_left_in_the_folder(path: Path) -> None:
    """Enough rows that SQLite has moved them between its pages."""
    file = open_file(path)
    for start in range(0, 3000, 100):
        file.write([stored(number) for number in range(start, start + 100)])
    doomed = [page(number) for number in range(0, 3000, 7)]
    assert all(one in bytes_in(path.parent) for one in doomed)
    file.forget(doomed)
    left = bytes_in(path.parent)
    file.close()
    assert not [one for one in doomed if one in left]
    assert page(1) in left
    assert len(read(path)) == 3000 - len(doomed)


def test_what_follows_a_forgotten_page_is_forgotten_too(path: Path) -> None:
    file = open_file(path)
    file.write([stored(1), stored(2, parent=1), stored(3, parent=2), stored(4, parent=3), stored(9)])
    file.forget([page(2)])
    assert {one.credit.page for one in file.read()} == {page(1), page(9)}
    file.close()


def test_past_the_most_entries_the_coldest_go(path: Path) -> None:
    file = open_file(path, max_entries=16)
    file.write([stored(number, weight=2.0, at=60.0 * number) for number in range(16)])
    file.write([stored(100, weight=64.0, at=60.0)])  # as warm as one of weight 2 five minutes later
    left = [one.credit.page for one in file.read()]
    file.close()
    assert len(left) == 14
    assert page(100) in left
    assert left[-1] == page(15)
    assert not {page(0), page(1), page(2)} & set(left)


def test_credit_of_another_fingerprint_is_dropped_and_said_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(path, stored(1))
    assert read(path, "other") == []
    assert page(1) not in bytes_in(path.parent)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "another model" in caplog.text
    assert read(path) == [], "it is bound to the other one now"


@pytest.mark.parametrize("damage", [b"", b"\x00" * 4096, b"not a database, whatever it may have been" * 100])
def test_a_damaged_file_means_a_cold_start_and_one_line(
    path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    written(path, stored(1))
    path.write_bytes(damage)
    file = open_file(path)
    assert file.read() == []
    assert len(caplog.records) == 1
    assert "credit starts cold" in caplog.text
    file.write([stored(2)])
    file.close()
    assert [one.credit.page for one in read(path)] == [page(2)]


def test_random_bytes_anywhere_are_survived(path: Path) -> None:
    written(path, *(stored(number) for number in range(500)))
    sound = path.read_bytes()
    for seed in range(40):
        noise = hashlib.blake2b(b"%d" % seed, digest_size=64).digest()
        offset = 5 * seed if seed < 20 else int.from_bytes(noise[:4], "big") % len(sound)  # the header for certain
        path.write_bytes(sound[:offset] + noise + sound[offset + len(noise) :])
        file = open_file(path)
        file.read()
        file.write([stored(1000)])
        assert page(1000) in {one.credit.page for one in file.read()}
        file.close()


def test_a_file_that_is_damaged_while_it_is_open_is_replaced(path: Path) -> None:
    file = open_file(path)
    file.write([stored(number) for number in range(500)])
    path.write_bytes(b"\xff" * path.stat().st_size)
    file.write([stored(1)])
    assert [one.credit.page for one in file.read()] == [page(1)]
    file.close()


def test_forgetting_takes_a_damaged_file_along(path: Path) -> None:
    written(path, *(stored(number) for number in range(500)))
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])
    file = open_file(path)
    assert file.read() == []
    assert page(1) in bytes_in(path.parent)
    file.forget([page(1)])
    file.close()
    assert page(1) not in bytes_in(path.parent)


def test_a_row_that_no_credit_can_have_is_passed_over(path: Path) -> None:
    written(path, stored(1))
    with sqlite3.connect(path) as db:
        db.executemany(
            "INSERT INTO credit VALUES (?, ?, ?, ?)",
            [(page(2), None, -1.0, 0.0), (page(3), None, "x", 0.0), ("text", None, 1.0, 0.0), (page(4), 5, 1.0, 0.0)],
        )
    db.close()
    assert read(path) == [stored(1)]
    file = open_file(path, max_entries=4)
    file.write([stored(number) for number in range(5, 8)])
    assert {one.credit.page for one in file.read()} <= {page(1), page(5), page(6), page(7)}
    file.close()


def test_a_full_disk_is_an_error_and_no_damage(path: Path) -> None:
    written(path, stored(1))
    file = open_file(path)
    file._open().execute("PRAGMA max_page_count = 4")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        file.write([stored(number) for number in range(1000)])
    file.close()
    assert read(path) == [stored(1)]
    assert [one.name for one in path.parent.iterdir()] == ["m.db"]


def test_columns_of_another_version_mean_a_cold_start(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(path, stored(1))
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE credit RENAME COLUMN weight TO w")
    db.close()
    assert read(path) == []
    assert "credit starts cold" in caplog.text


def test_a_database_of_someone_else_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE prefixes (name TEXT)")
    db.close()
    before = path.read_bytes()
    file = open_file(path)
    with pytest.raises(FileExistsError, match="aging_persist_dir"):
        file.read()
    with pytest.raises(FileExistsError, match="aging_persist_dir"):
        file.write([stored(1)])
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]
