"""The store on its own: what it survives, and what it leaves on disk."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from exllamav3_adapters.contract import Head
from litellm_exllamav3.credit import CreditRow
from litellm_exllamav3.store.budget import Budget, ModelBudgets
from litellm_exllamav3.store.errors import StoreUnavailable
from litellm_exllamav3.store.migrations import MIGRATIONS, migrate
from litellm_exllamav3.store.outage import Outage
from litellm_exllamav3.store.prefix_store import PrefixStore, StoreListener
from litellm_exllamav3.store.records import StoredHead, encode_head
from litellm_exllamav3.store.schema import metadata

MODEL = "smollm2"
T = 1_800_000_000.0
BUDGET = Budget(max_entries=100, max_entries_per_key=100, max_bytes=1 << 26, max_age_seconds=30 * 86_400)
LIMIT_SECONDS = 20


@dataclass
class Stores:
    """Stores over one folder, opened one after another or side by side."""

    folder: Path
    opened: list[PrefixStore] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    times_lost: int = 0

    def open(self, budget: Budget = BUDGET, flush_seconds: float = 60, chains: Budget = BUDGET) -> PrefixStore:
        listener = StoreListener(removed=lambda _, digests: self.removed.extend(digests), lost=self.lose)
        budgets = {MODEL: ModelBudgets(heads=budget, chains=chains)}
        store = PrefixStore(self.folder, budgets, listener, flush_seconds=flush_seconds, clock=lambda: T)
        self.opened.append(store)
        store.load().result(LIMIT_SECONDS)
        return store

    def lose(self) -> None:
        self.times_lost += 1

    @property
    def path(self) -> Path:
        return self.folder / "prefixes.db"

    def moved_aside(self) -> list[Path]:
        return sorted(self.folder.glob("prefixes.db.damaged-*"))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "state")
    yield stores
    for store in stores.opened:
        store.close().result(LIMIT_SECONDS)


def head(digest: str, size: int = 100, value: float = T, written_at: float = T) -> StoredHead:
    content = encode_head(Head(messages=({"role": "system", "content": f"text of {digest} " * (size // 10)},)))
    return StoredHead(
        model_key=MODEL,
        digest=digest,
        owner="key-1",
        content=content,
        num_tokens=size,
        value=value,
        captured_at=written_at,
        written_at=written_at,
    )


def credit(digest: str, requests: float = T) -> CreditRow:
    return CreditRow(digest=digest, owner="key-1", conversations=requests, requests=requests, seen_at=T)


def flush(store: PrefixStore) -> bool:
    return store.flush().result(LIMIT_SECONDS)


def digests(store: PrefixStore) -> list[str]:
    return [head.digest for head in store.heads(MODEL).result(LIMIT_SECONDS)]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


# What is kept.


def test_heads_and_counts_are_there_after_a_restart(stores: Stores) -> None:
    first = stores.open()
    first.add_head(head("a"))
    first.add_credit(MODEL, credit("a"))
    first.add_credit(MODEL, credit("b", requests=-float("inf")))
    first.close().result(LIMIT_SECONDS)
    second = stores.open()
    loaded = second.load().result(LIMIT_SECONDS)
    assert loaded.digests == {MODEL: frozenset({"a"})}
    assert sorted(loaded.credits[MODEL], key=lambda row: row.digest) == [
        credit("a"),
        credit("b", requests=-float("inf")),
    ]
    assert second.heads(MODEL).result(LIMIT_SECONDS) == [head("a")]


def test_a_sighting_moves_a_head_to_the_front(stores: Stores) -> None:
    store = stores.open()
    store.add_head(head("a", written_at=T - 2))
    store.add_head(head("b", written_at=T - 1))
    flush(store)
    store.add_sighting(MODEL, "a", T, T)
    assert digests(store) == ["a", "b"]
    assert store.heads(MODEL).result(LIMIT_SECONDS)[0].captured_at == T - 2


def test_what_waits_is_written_on_time(stores: Stores) -> None:
    writer = stores.open(flush_seconds=0.01)
    reader = stores.open()
    writer.add_head(head("a"))
    until(lambda: digests(reader) == ["a"])
    writer.add_head(head("b"))
    until(lambda: sorted(digests(reader)) == ["a", "b"])


def test_a_closed_store_refuses_questions_but_not_news(stores: Stores) -> None:
    store = stores.open()
    store.close().result(LIMIT_SECONDS)
    store.add_head(head("a"))
    with pytest.raises(StoreUnavailable, match="is closed"):
        store.heads(MODEL)


def test_a_model_that_is_no_longer_configured_keeps_its_heads(stores: Stores) -> None:
    first = stores.open()
    first.add_head(head("a"))
    first.close().result(LIMIT_SECONDS)
    budgets = {"other": ModelBudgets(heads=BUDGET, chains=BUDGET)}
    listener = StoreListener(removed=print, lost=print)
    other = PrefixStore(stores.folder, budgets, listener, flush_seconds=60, clock=lambda: T)
    other.close().result(LIMIT_SECONDS)
    assert digests(stores.open()) == ["a"]


def test_a_smaller_budget_applies_at_the_next_start(stores: Stores) -> None:
    first = stores.open()
    for number in range(10):
        first.add_head(head(f"{number}", value=T + number))
    first.close().result(LIMIT_SECONDS)
    small = Budget(max_entries=2, max_entries_per_key=100, max_bytes=1 << 26, max_age_seconds=1e9)
    assert sorted(digests(stores.open(small))) == ["8", "9"]
    assert sorted(stores.removed) == [f"{number}" for number in range(8)]


def test_counts_are_bounded(stores: Stores) -> None:
    store = stores.open()
    for number in range(9000):
        store.add_credit(
            MODEL, CreditRow(digest=f"{number}", owner="k", conversations=T, requests=T, seen_at=T + number)
        )
    store.add_head(head("a"))
    flush(store)
    with contextlib.closing(sqlite3.connect(stores.path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM credits").fetchone()
    assert count == 8192


def test_a_head_captured_again_keeps_its_first_time(stores: Stores) -> None:
    store = stores.open()
    store.add_head(head("a", written_at=T - 9))
    flush(store)
    store.add_head(head("a", written_at=T))
    (found,) = store.heads(MODEL).result(LIMIT_SECONDS)
    assert (found.captured_at, found.written_at) == (T - 9, T)


# Who can read it.


def test_files_are_the_owner_s_alone(stores: Stores) -> None:
    old = os.umask(0)
    try:
        store = stores.open()
        store.add_head(head("a"))
        flush(store)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in stores.folder.iterdir()}
    assert modes == {"prefixes.db": 0o600, "prefixes.db-wal": 0o600, "prefixes.db-shm": 0o600}
    assert stat.S_IMODE(stores.folder.stat().st_mode) == 0o700


def test_a_file_that_others_could_read_is_closed_to_them(stores: Stores) -> None:
    stores.open().close().result(LIMIT_SECONDS)
    stores.path.chmod(0o644)
    stores.open()
    assert stat.S_IMODE(stores.path.stat().st_mode) == 0o600


def test_a_head_that_was_crowded_out_leaves_no_byte(stores: Stores) -> None:
    store = stores.open(Budget(max_entries=1, max_entries_per_key=9, max_bytes=1 << 20, max_age_seconds=1e9))
    for digest in ("a", "b"):
        store.add_head(head(digest, size=5000))
        flush(store)
    store.close().result(LIMIT_SECONDS)
    content = stores.path.read_bytes()
    assert b"text of b" in content
    assert b"text of a" not in content


# Damage.


def test_a_store_of_random_bytes_is_moved_aside(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    stores.folder.mkdir()
    garbage = random.Random(1).randbytes(50_000)
    stores.path.write_bytes(garbage)
    store = stores.open()
    store.add_head(head("a"))
    assert flush(store)
    assert digests(store) == ["a"]
    (aside,) = stores.moved_aside()
    assert aside.name == f"prefixes.db.damaged-{int(T)}"
    assert aside.read_bytes() == garbage
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("seed", range(5))
def test_a_store_overwritten_in_places_is_moved_aside_with_its_side_files(stores: Stores, seed: int) -> None:
    first = stores.open()
    for number in range(30):
        first.add_head(head(f"{number}", size=5000))
    first.close().result(LIMIT_SECONDS)
    content = bytearray(stores.path.read_bytes())
    rng = random.Random(seed)
    for page in range(0, len(content), 4096):
        content[page : page + 64] = rng.randbytes(64)
    stores.path.write_bytes(content)
    for suffix in ("-wal", "-shm"):
        stores.path.with_name(f"prefixes.db{suffix}").write_bytes(rng.randbytes(5000))
    second = stores.open()
    second.add_head(head("new"))
    assert flush(second)
    assert digests(second) == ["new"]
    assert stores.path.with_name(f"prefixes.db.damaged-{int(T)}").exists()


def test_an_empty_file_is_a_new_store(stores: Stores) -> None:
    stores.folder.mkdir()
    stores.path.touch()
    store = stores.open()
    store.add_head(head("a"))
    assert flush(store)
    assert stores.moved_aside() == []


def test_two_damaged_files_are_both_kept_aside(stores: Stores) -> None:
    stores.folder.mkdir()
    for _ in range(2):
        stores.path.write_bytes(b"damaged" * 1000)
        stores.open().close().result(LIMIT_SECONDS)
    assert len(stores.moved_aside()) == 2


def damage_in_use(stores: Stores) -> PrefixStore:
    """More heads than SQLite keeps in memory, written over while the store is open."""
    store = stores.open()
    for number in range(20):
        store.add_head(head(f"{number}", size=250_000))
    flush(store)
    rng = random.Random(2)
    for suffix in ("", "-wal"):
        path = stores.path.with_name(f"prefixes.db{suffix}")
        with path.open("r+b") as file:
            file.write(rng.randbytes(path.stat().st_size))
    return store


def test_a_store_damaged_while_open_is_replaced(stores: Stores) -> None:
    store = damage_in_use(stores)
    assert digests(store) == []
    store.add_head(head("new"))
    assert flush(store)
    assert digests(store) == ["new"]
    assert stores.times_lost == 1
    assert stores.moved_aside()


def test_what_waits_when_damage_is_found_is_written_to_the_new_store(stores: Stores) -> None:
    store = damage_in_use(stores)
    for number in range(100, 120):
        store.add_head(head(f"{number}", size=250_000))
    assert flush(store)
    assert set(digests(store)) <= {f"{number}" for number in range(100, 120)}
    store.add_head(head("new"))
    assert flush(store)
    assert "new" in digests(store)
    assert stores.times_lost == 1


def test_forget_in_a_damaged_store_leaves_no_byte(stores: Stores) -> None:
    store = damage_in_use(stores)
    store.forget(MODEL, "3").result(LIMIT_SECONDS)
    store.close().result(LIMIT_SECONDS)
    assert not any(b"text of 3 " in path.read_bytes() for path in stores.folder.iterdir())


def test_a_store_removed_while_open_is_begun_again(stores: Stores) -> None:
    store = stores.open()
    store.add_head(head("a"))
    flush(store)
    for path in stores.folder.iterdir():
        path.unlink()
    store.add_head(head("b"))
    assert flush(store)
    assert digests(store) == ["b"]
    assert stores.times_lost == 1


# Outages.


def test_a_folder_that_cannot_be_made_costs_only_persistence(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    stores.folder.write_text("in the way")
    store = stores.open()
    store.add_head(head("a"))
    for _ in range(5):
        assert not flush(store)
    assert digests(store) == ["a"]
    assert not store.writable
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be written" in caplog.text
    with caplog.at_level(logging.INFO):
        stores.folder.unlink()
        assert flush(store)
    assert store.writable
    assert "can be written again" in caplog.text
    store.close().result(LIMIT_SECONDS)
    assert digests(stores.open()) == ["a"]


def test_an_outage_ends_without_being_asked(stores: Stores) -> None:
    stores.folder.write_text("in the way")
    store = stores.open(flush_seconds=0.01)
    store.add_head(head("a"))
    until(lambda: not store.writable)
    stores.folder.unlink()
    until(lambda: store.writable and store.num_pending_heads == 0)
    assert digests(store) == ["a"]


def test_what_waits_in_an_outage_is_bounded(stores: Stores) -> None:
    stores.folder.write_text("in the way")
    store = stores.open(Budget(max_entries=3, max_entries_per_key=9, max_bytes=1 << 20, max_age_seconds=1e9))
    for number in range(10):
        store.add_head(head(f"{number}", value=T + number))
    flush(store)
    assert sorted(digests(store)) == ["7", "8", "9"]
    assert sorted(stores.removed) == [f"{number}" for number in range(7)]


@contextlib.contextmanager
def full_disk(max_file_bytes: int) -> Iterator[None]:
    """No file of this process can grow past the limit. Python ignores the signal, so writes fail as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_loses_nothing(stores: Stores) -> None:
    store = stores.open()
    store.add_head(head("before"))
    assert flush(store)
    size = (stores.folder / "prefixes.db-wal").stat().st_size
    with full_disk(size):
        for number in range(5):
            store.add_head(head(f"{number}", size=50_000))
        assert not flush(store)
        assert sorted(digests(store)) == ["0", "1", "2", "3", "4", "before"]
        assert not store.writable
    assert flush(store)
    store.close().result(LIMIT_SECONDS)
    assert sorted(digests(stores.open())) == ["0", "1", "2", "3", "4", "before"]
    assert stores.moved_aside() == []


def test_a_full_disk_at_the_first_start_loses_nothing(stores: Stores) -> None:
    with full_disk(100):
        store = stores.open()
        store.add_head(head("a"))
        assert not flush(store)
    assert flush(store)
    assert digests(store) == ["a"]
    assert stores.moved_aside() == []


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can write in the folder. Nothing is read-only for root, who becomes another user for the while."""
    root = os.geteuid() == 0
    if root:
        for path in (folder, *folder.iterdir()):
            os.chown(path, 65_534, 65_534)
    for path in folder.iterdir():
        path.chmod(0o400)
    folder.chmod(0o500)
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        for path in folder.iterdir():
            path.chmod(0o600)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that another user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_read_only_folder_still_shows_what_is_in_it(open_to_all: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = Stores(open_to_all / "state")
    first = stores.open()
    first.add_head(head("a"))
    first.add_credit(MODEL, credit("a"))
    first.close().result(LIMIT_SECONDS)
    before = stores.path.read_bytes()
    with read_only(stores.folder):
        store = stores.open()
        assert store.load().result(LIMIT_SECONDS).digests == {MODEL: frozenset({"a"})}
        assert store.load().result(LIMIT_SECONDS).credits == {MODEL: [credit("a")]}
        assert digests(store) == ["a"]
        store.add_head(head("b"))
        assert not flush(store)
        assert sorted(digests(store)) == ["a", "b"]
        assert "cannot be written" in caplog.text
    assert stores.path.read_bytes() == before
    assert flush(store)
    store.close().result(LIMIT_SECONDS)
    assert sorted(digests(stores.open())) == ["a", "b"]
    stores.opened[-1].close().result(LIMIT_SECONDS)


def test_an_outage_is_told_once_and_waited_for_longer_each_time(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(Path("prefixes.db"))
    waits = []
    for _ in range(8):
        outage.begins(OSError("no space"))
        waits.append(outage.wait_seconds)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert len(caplog.records) == 1
    outage.ends()
    outage.begins(OSError("no space"))
    assert outage.wait_seconds == 1
    assert len(caplog.records) == 1


def test_forget_says_so_where_it_cannot_delete(stores: Stores) -> None:
    store = stores.open()
    store.add_head(head("a", size=50_000))
    flush(store)
    with full_disk(1), pytest.raises(StoreUnavailable, match=r"a is still in .*prefixes.db.*forget it again"):
        store.forget(MODEL, "a").result(LIMIT_SECONDS)
    assert store.forget(MODEL, "a").result(LIMIT_SECONDS) is not None


def test_forget_needs_no_file_where_none_was_written(stores: Stores) -> None:
    stores.folder.write_text("in the way")
    store = stores.open()
    store.add_head(head("a"))
    assert store.forget(MODEL, "a").result(LIMIT_SECONDS) == head("a")
    assert digests(store) == []


# Several processes.


def test_what_another_process_forgot_is_reported_as_removed(stores: Stores) -> None:
    proxy, command = stores.open(), stores.open()
    proxy.add_head(head("a"))
    flush(proxy)
    command.forget(MODEL, "a").result(LIMIT_SECONDS)
    proxy.add_sighting(MODEL, "a", T, T)
    flush(proxy)
    assert stores.removed == ["a"]
    assert digests(proxy) == []


def test_forget_waits_for_a_reader_in_another_process(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    store = stores.open()
    store.add_head(head("secret", size=5000))
    flush(store)
    reader = sqlite3.connect(stores.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM heads").fetchone()
    store.forget(MODEL, "secret").result(LIMIT_SECONDS)
    assert digests(store) == []
    assert "is in use" in caplog.text
    assert any(b"text of secret" in path.read_bytes() for path in stores.folder.iterdir())
    reader.close()
    assert flush(store)
    assert not any(b"text of secret" in path.read_bytes() for path in stores.folder.iterdir())


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from exllamav3_adapters.contract import Head
from litellm_exllamav3.store.budget import Budget, ModelBudgets
from litellm_exllamav3.store.prefix_store import PrefixStore, StoreListener
from litellm_exllamav3.store.records import StoredHead, encode_head
folder, name, count = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
budget = Budget(max_entries=100000, max_entries_per_key=100000, max_bytes=1 << 40, max_age_seconds=1e12)
budgets = {"smollm2": ModelBudgets(heads=budget, chains=budget)}
store = PrefixStore(folder, budgets, StoreListener(removed=print, lost=print), flush_seconds=60)
store.load().result(60)
for number in range(count):
    digest = f"{name}-{number}"
    content = encode_head(Head(messages=({"role": "system", "content": digest * 500},)))
    store.add_head(StoredHead(model_key="smollm2", digest=digest, owner="k", content=content, num_tokens=1, value=1.0,
                              captured_at=1.8e9, written_at=1.8e9))
    while not store.flush().result(60):
        pass
    print(digest, flush=True)
store.close().result(60)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    package = Path(sys.modules[PrefixStore.__module__].__file__ or "").parents[2]
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(package), str(folder), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_may_write(stores: Stores) -> None:
    processes = [writer(stores.folder, name, 30) for name in ("one", "other")]
    assert [process.wait(60) for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    expected = sorted(f"{name}-{number}" for name in ("one", "other") for number in range(30))
    assert sorted(digests(stores.open())) == expected
    assert stores.moved_aside() == []


@pytest.mark.parametrize(
    "seed", [1, 2, pytest.param(3, marks=pytest.mark.full), pytest.param(4, marks=pytest.mark.full)]
)
def test_a_killed_writer_loses_nothing_that_was_flushed(stores: Stores, seed: int) -> None:
    process = writer(stores.folder, "a", 100_000)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait(LIMIT_SECONDS)
    flushed = {line.strip() for line in [first, *process.stdout]}
    process.stdout.close()
    store = stores.open(Budget.of_age(seconds=1e11))
    assert flushed <= set(digests(store))
    store.add_head(head("after"))
    assert flush(store)
    assert stores.moved_aside() == []


# Schema.


def at_version(path: Path, version: int) -> None:
    """Makes a store as the release with that schema version left it, with a head in it."""
    path.parent.mkdir(exist_ok=True)
    engine = create_engine(f"sqlite:///{path}")
    migrate(engine, T, MIGRATIONS[:version])
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO heads VALUES ('smollm2', 'old', 'k', :content, 1, 7, :time, :time, :time)"),
            {"content": head("old").content, "time": T},
        )
    engine.dispose()


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_every_earlier_schema_is_brought_up_to_date(stores: Stores, version: int) -> None:
    at_version(stores.path, version)
    store = stores.open()
    assert digests(store) == ["old"]
    store.add_head(head("new"))
    assert flush(store)
    with contextlib.closing(sqlite3.connect(stores.path)) as connection:
        versions = connection.execute("SELECT version FROM schema_version ORDER BY version").fetchall()
    assert versions == [(number,) for number in range(1, len(MIGRATIONS) + 1)]


def test_the_migrations_end_at_the_schema(tmp_path: Path) -> None:
    migrated, created = (create_engine(f"sqlite:///{tmp_path / name}") for name in ("migrated", "created"))
    migrate(migrated, T)
    metadata.create_all(created)
    assert described(migrated.connect()) == described(created.connect())
    for engine in (migrated, created):
        engine.dispose()


def described(connection: Connection) -> dict[str, object]:
    found = inspect(connection)
    tables = {
        name: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(name)],
            found.get_pk_constraint(name)["constrained_columns"],
            [(index["name"], index["column_names"]) for index in found.get_indexes(name)],
        )
        for name in found.get_table_names()
    }
    connection.close()
    return tables


def test_a_migration_that_fails_changes_nothing(stores: Stores) -> None:
    at_version(stores.path, 1)
    stores.open().close().result(LIMIT_SECONDS)
    engine = create_engine(f"sqlite:///{stores.path}")

    def broken(connection: Connection) -> None:
        raise RuntimeError("broken step")

    with pytest.raises(RuntimeError, match="broken step"):
        migrate(engine, T, [*MIGRATIONS, broken])
    assert migrate(engine, T) == len(MIGRATIONS)
    engine.dispose()


def test_a_store_of_a_later_release_is_left_alone(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    stores.open().close().result(LIMIT_SECONDS)
    with contextlib.closing(sqlite3.connect(stores.path)) as connection, connection:
        connection.execute("INSERT INTO schema_version VALUES (99, 0)")
    before = stores.path.read_bytes()
    store = stores.open()
    store.add_head(head("a"))
    assert not flush(store)
    assert digests(store) == ["a"]
    assert "schema version 99" in caplog.text
    assert stores.path.read_bytes() == before
    assert stores.moved_aside() == []
