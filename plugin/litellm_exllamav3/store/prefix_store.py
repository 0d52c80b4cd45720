"""The store of captured heads and chains: news is taken in memory at once, and written by a thread of its own."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from litellm_exllamav3.credit import CreditRow
from litellm_exllamav3.store.budget import Budget, ModelBudgets
from litellm_exllamav3.store.errors import StoreUnavailable, reason
from litellm_exllamav3.store.outage import Outage
from litellm_exllamav3.store.pending import Pending
from litellm_exllamav3.store.queries import (
    apply_budget,
    count_chains,
    delete_chains,
    delete_head,
    read_chains,
    read_credits,
    read_entries,
    read_heads,
    read_model_keys,
    write_pending,
)
from litellm_exllamav3.store.records import StoredChain, StoredHead
from litellm_exllamav3.store.sqlite_file import SqliteFile, is_damage

logger = logging.getLogger("litellm_exllamav3.store")

T = TypeVar("T")

_FAULTS = (SQLAlchemyError, sqlite3.Error, OSError, StoreUnavailable)
_SECONDS_BETWEEN_BUDGETS = 3600.0
_SECONDS_BETWEEN_TRUNCATIONS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What an earlier process left."""

    digests: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Captured heads by model."""
    credits: Mapping[str, list[CreditRow]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreListener:
    """Told on the store's thread what happened there."""

    removed: Callable[[str, list[str]], None]
    """Heads of a model that are no longer kept."""
    lost: Callable[[], None]
    """The file is gone or was moved aside, with all that was in it."""


class PrefixStore:
    """The store in one folder. The `add_*` methods return at once and do no I/O; the others return a future.

    While the file cannot be written (read-only folder, full disk) everything waits in memory, within the budgets, and
    is written when it can be again.
    """

    def __init__(
        self,
        folder: Path,
        budgets: Mapping[str, ModelBudgets],
        listener: StoreListener,
        *,
        flush_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`budgets` by model key. `clock` gives seconds since the epoch."""
        self._file = SqliteFile(folder)
        self._budgets = dict(budgets)
        self._listener = listener
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._pending = Pending()
        self._num_chains: Mapping[str, int] = {}
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outage = Outage(self._file.path)
        self._engine: Engine | None = None
        self._identity: tuple[int, int] | None = None
        self._budgets_applied_at = -_SECONDS_BETWEEN_BUDGETS
        self._truncate_due = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="exllamav3-store", daemon=True)
        self._thread.start()

    @property
    def writable(self) -> bool:
        """Whether the last attempt to write went well."""
        return not self._outage.reason

    @property
    def num_pending_heads(self) -> int:
        return len(self._pending.heads)

    @property
    def num_pending_chains(self) -> int:
        return len(self._pending.chains)

    @property
    def num_chains(self) -> Mapping[str, int]:
        """By model, of all fingerprints; those that still wait are not counted."""
        return self._num_chains

    def add_head(self, head: StoredHead) -> None:
        with self._lock:
            self._wake()
            self._pending.sightings.pop((head.model_key, head.digest), None)
            self._pending.heads[head.model_key, head.digest] = head

    def add_sighting(self, model_key: str, digest: str, value: float, at: float) -> None:
        """A captured head was seen again."""
        with self._lock:
            self._wake()
            self._pending.add_sighting(model_key, digest, value, at)

    def add_credit(self, model_key: str, row: CreditRow) -> None:
        with self._lock:
            self._wake()
            self._pending.add_credit(model_key, row)

    def add_chain(self, chain: StoredChain) -> None:
        with self._lock:
            self._wake()
            self._pending.chains[chain.key] = chain

    def load(self) -> Future[Loaded]:
        return self._submit(self._load)

    def heads(self, model_key: str) -> Future[list[StoredHead]]:
        """All heads of a model, those included that still wait; most recently written first."""
        return self._submit(lambda: self._heads(model_key))

    def chains(self, model_key: str) -> Future[list[StoredChain]]:
        """All chains of a model under any fingerprint, those included that still wait; most recently written first."""
        return self._submit(lambda: self._chains(model_key))

    def forget(self, model_key: str, digest: str) -> Future[StoredHead | None]:
        """Removes a head so that no file of the store holds a byte of it. The future's result is the head, if any.

        It fails with StoreUnavailable where the file cannot be written: then the head is still on disk.
        """
        return self._submit(lambda: self._forget_head(model_key, digest))

    def forget_chains(self, model_key: str, doomed: Callable[[StoredChain], bool]) -> Future[list[StoredChain]]:
        """As `forget`, for the chains of a model that are `doomed`, which is asked on the store's thread."""
        return self._submit(lambda: self._forget_chains(model_key, doomed))

    def flush(self) -> Future[bool]:
        """Writes what waits. The result: whether it could be."""
        return self._submit(self._write)

    def close(self) -> Future[None]:
        """Writes what waits and ends the thread. May be called more than once."""
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                done.set_result(None)
                return done
            self._closed = True
        self._tasks.put(lambda: self._finish(done))
        self._tasks.put(None)
        return done

    # On the caller's thread.

    def _wake(self) -> None:
        """The first news after a write starts the time to the next one."""
        if not self._pending:
            self._tasks.put(_nothing)

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()

        def task() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)

        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"the store {self._file.path} is closed")
            self._tasks.put(task)
        return done

    # On the store's thread.

    def _run(self) -> None:
        write_at: float | None = None
        while True:
            wait = None if write_at is None else max(0.0, write_at - time.monotonic())
            try:
                task = self._tasks.get(timeout=wait)
            except queue.Empty:
                task = self._write_on_time
            if task is None:
                return
            task()
            write_at = self._next_write(write_at)

    def _write_on_time(self) -> None:
        try:
            self._write()
        except Exception:
            # The thread must live: all that follows would be lost in silence.
            logger.exception("the store %s met a fault of its own", self._file.path)

    def _next_write(self, write_at: float | None) -> float | None:
        if not self._pending and not self._truncate_due:
            return None
        now = time.monotonic()
        if write_at is not None and write_at > now:
            return write_at
        wait = max(self._flush_seconds, self._outage.wait_seconds)
        return now + (wait if self._pending else max(wait, _SECONDS_BETWEEN_TRUNCATIONS))

    def _finish(self, done: Future[None]) -> None:
        try:
            self._write()
            self._dispose()
        finally:
            done.set_result(None)

    def _load(self) -> Loaded:
        try:
            with self._ready_engine().begin() as connection:
                removed = self._apply_budgets(connection)
                loaded = self._read_all(connection)
        except _FAULTS as error:
            self._outage.begins(error)
            return self._load_read_only()
        self._report(removed)
        return loaded

    def _load_read_only(self) -> Loaded:
        try:
            engine = self._file.open_read_only()
            with engine.connect() as connection:
                loaded = self._read_all(connection)
            engine.dispose()
        except _FAULTS:
            return Loaded()
        return loaded

    def _read_all(self, connection: Connection) -> Loaded:
        self._num_chains = count_chains(connection)
        return Loaded(
            digests={key: frozenset(entry.digest for entry in read_entries(connection, key)) for key in self._budgets},
            credits={key: read_credits(connection, key) for key in self._budgets},
        )

    def _heads(self, model_key: str) -> list[StoredHead]:
        found = self._read(lambda connection: read_heads(connection, model_key))
        with self._lock:
            waiting = [head for (model, _), head in self._pending.heads.items() if model == model_key]
        by_digest = {head.digest: head for head in [*found, *waiting]}
        return sorted(by_digest.values(), key=lambda head: head.written_at, reverse=True)

    def _chains(self, model_key: str) -> list[StoredChain]:
        found = self._read(lambda connection: read_chains(connection, model_key))
        with self._lock:
            waiting = [chain for chain in self._pending.chains.values() if chain.model_key == model_key]
        by_key = {chain.key: chain for chain in [*found, *waiting]}
        return sorted(by_key.values(), key=lambda chain: chain.written_at, reverse=True)

    def _read(self, read: Callable[[Connection], list[T]]) -> list[T]:
        """After what waits was written; nothing where the file cannot be read."""
        self._write()
        try:
            return self._read_file(read)
        except _FAULTS as error:
            logger.debug("nothing captured could be read from %s: %s", self._file.path, reason(error))
            self._replace_damaged(error)
            return []

    def _read_file(self, read: Callable[[Connection], list[T]]) -> list[T]:
        if self._engine is not None:
            with self._engine.begin() as connection:
                return read(connection)
        engine = self._file.open_read_only()
        try:
            with engine.connect() as connection:
                return read(connection)
        finally:
            engine.dispose()

    def _forget_head(self, model_key: str, digest: str) -> StoredHead | None:
        with self._lock:
            waiting = self._pending.forget_head(model_key, digest)
        return self._delete(lambda connection: delete_head(connection, model_key, digest), digest) or waiting

    def _forget_chains(self, model_key: str, doomed: Callable[[StoredChain], bool]) -> list[StoredChain]:
        with self._lock:
            waiting = self._pending.forget_chains(model_key, doomed)
        found = self._delete(lambda connection: delete_chains(connection, model_key, doomed), f"a chain of {model_key}")
        return list({chain.key: chain for chain in [*(found or ()), *waiting]}.values())

    def _delete(self, delete: Callable[[Connection], T], name: str) -> T | None:
        """Deletes so that no byte is left. None where there is no file. Raises StoreUnavailable, which says `name`."""
        if self._engine is None and self._file.identity() is None:
            return None
        try:
            return self._delete_in_file(delete)
        except _FAULTS as error:
            if self._replace_damaged(error):
                return self._delete(delete, name)
            raise StoreUnavailable(
                f"{name} is still in {self._file.path}, which cannot be written ({reason(error)}): "
                "make it writable and forget it again"
            ) from error

    def _delete_in_file(self, delete: Callable[[Connection], T]) -> T:
        engine = self._ready_engine()
        with engine.begin() as connection:
            found = delete(connection)
            self._num_chains = count_chains(connection)
        self._file.remove_moved_aside()
        self._truncate_due = not self._file.truncate_log(engine)
        if self._truncate_due:
            logger.warning("%s is in use: what was forgotten will leave its log later", self._file.path)
        return found

    def _write(self) -> bool:
        """Writes what waits, at once. False if it must wait on."""
        try:
            self._write_pending()
        except _FAULTS as error:
            if self._replace_damaged(error):
                return True
            self._outage.begins(error)
            self._trim_pending()
            return False
        self._outage.ends()
        return True

    def _write_pending(self) -> None:
        with self._lock:
            taken, self._pending = self._pending, Pending()
        try:
            self._write_taken(taken)
        except BaseException:
            with self._lock:
                self._pending.add_older(taken)
            raise

    def _write_taken(self, taken: Pending) -> None:
        if not taken and not self._truncate_due and self._outage.reason is None:
            return
        engine = self._ready_engine()
        with engine.begin() as connection:
            removed = write_pending(connection, taken)
            for key in {key for key, *_ in [*taken.heads, *taken.chains]} & self._budgets.keys():
                newcomers = [digest for model, digest in taken.heads if model == key]
                removed.setdefault(key, []).extend(
                    apply_budget(connection, key, self._budgets[key], self._clock(), newcomers)
                )
            for key, digests in self._apply_budgets(connection).items():
                removed.setdefault(key, []).extend(digests)
            self._num_chains = count_chains(connection)
        self._report(removed)
        if self._truncate_due:
            self._truncate_due = not self._file.truncate_log(engine)

    def _apply_budgets(self, connection: Connection) -> dict[str, list[str]]:
        """Those of all models, now and then; what is of a model that is no longer configured is kept for its age."""
        now = self._clock()
        if abs(now - self._budgets_applied_at) < _SECONDS_BETWEEN_BUDGETS:
            return {}
        self._budgets_applied_at = now
        oldest = max((budgets.heads.max_age_seconds for budgets in self._budgets.values()), default=30 * 86_400.0)
        others = ModelBudgets(heads=Budget.of_age(oldest), chains=Budget.of_age(oldest))
        keys: Iterable[str] = {*self._budgets, *read_model_keys(connection)}
        return {key: apply_budget(connection, key, self._budgets.get(key, others), now) for key in keys}

    def _replace_damaged(self, error: BaseException) -> bool:
        """If the file was damaged while it was open, begins a new one. False if not, or if that fails too."""
        if self._engine is None or not is_damage(error):
            return False
        self._dispose()
        try:
            self._file.condemn(self._identity, self._clock(), error)
            self._listener.lost()
            self._write_pending()
        except _FAULTS as again:
            logger.debug("the damaged store %s cannot be replaced: %s", self._file.path, reason(again))
            return False
        return True

    def _ready_engine(self) -> Engine:
        if self._engine is not None and self._file.identity() != self._identity:
            logger.warning("the store %s was removed or replaced while in use: opened again", self._file.path)
            self._dispose()
            self._listener.lost()
        if self._engine is None:
            self._engine = self._file.open(self._clock())
            self._identity = self._file.identity()
        return self._engine

    def _dispose(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _trim_pending(self) -> None:
        for key, budgets in self._budgets.items():
            with self._lock:
                gone = self._pending.trim(key, budgets, self._clock())
            self._report({key: gone})

    def _report(self, removed: Mapping[str, list[str]]) -> None:
        for model_key, digests in removed.items():
            if digests:
                self._listener.removed(model_key, digests)


def _nothing() -> None:
    """Makes the thread look at what waits."""
