"""The credit of a model's pages on disk: one SQLite file, bound to one cache fingerprint."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from exllamav3_adapters.credit_path import damaged_path, journal_path
from exllamav3_adapters.policies.aging_credit import PageCredit

log = logging.getLogger(__name__)

T = TypeVar("T")

_VERSION = 1
_BUSY_SECONDS = 5.0
_REFUSALS = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
"""Errors that say nothing about the file's contents. Any other means damage, since every statement here is sound."""
_KEPT_WHEN_FULL = 7 / 8
"""Of the most entries, so that not every batch has to look for the coldest."""

_SCHEMA = (
    "CREATE TABLE bound (fingerprint TEXT NOT NULL)",
    "CREATE TABLE credit (page BLOB PRIMARY KEY, parent BLOB, weight REAL NOT NULL, at REAL NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {_VERSION}",
)


@dataclass(frozen=True, slots=True)
class StoredCredit:
    """A page's credit with the time at which it had that weight, so that any half-life can be applied to it."""

    credit: PageCredit
    at: float
    """Seconds since the epoch."""


class CreditFile:
    """Blocking, and used by one thread. Opened when it is first used, and again after an error.

    A damaged file is moved aside, and one of another fingerprint is emptied; both are logged and are no error. What
    cannot be read or written for now raises OSError or sqlite3.Error.
    """

    def __init__(self, path: Path, *, fingerprint: str, half_life_seconds: float, max_entries: int) -> None:
        """`half_life_seconds` tells which pages are the coldest, once there are more than `max_entries`."""
        self._path = path
        self._aside = damaged_path(path)
        self._fingerprint = fingerprint
        self._half_life = half_life_seconds
        self._max_entries = max_entries
        self._connection: sqlite3.Connection | None = None

    def read(self) -> list[StoredCredit]:
        """All that the file holds, the coldest first."""
        rows = self._attempt(lambda db: db.execute("SELECT page, parent, weight, at FROM credit").fetchall())
        stored = [StoredCredit(PageCredit(page, parent, weight), at) for page, parent, weight, at in rows]
        return sorted(filter(_is_sound, stored), key=lambda one: self._warmth(one.credit.weight, one.at))

    def write(self, batch: Collection[StoredCredit]) -> None:
        self._attempt(lambda db: self._write(db, batch))

    def forget(self, pages: Collection[bytes]) -> None:
        """Drops these pages and all that follow them; none of their hashes is left in the folder."""
        self._aside.unlink(missing_ok=True)
        self._attempt(lambda db: self._forget(db, set(pages)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return action(self._open())
        except sqlite3.Error as error:
            self.close()
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _REFUSALS:
                raise
            self._path.replace(self._aside)
            journal_path(self._path).unlink(missing_ok=True)
            log.warning("%s is damaged (%s), and is now %s; credit starts cold", self._path, error, self._aside.name)
            return action(self._open())

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._path.exists():
            return self._connection
        self.close()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        was_there = self._make()
        db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            self._prepare(db, was_there)
        except BaseException:
            db.close()  # what is written to a file that was not found fit would take its lack of tables for damage
            raise
        self._connection = db
        return db

    def _make(self) -> bool:
        """Makes the file with the mode that its journal is to have as well. True: it was there."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return True  # and is not opened here: closing it would drop the locks of other connections
        os.close(descriptor)
        return False

    def _prepare(self, db: sqlite3.Connection, was_there: bool) -> None:
        if _tables(db) - {"bound", "credit"}:
            raise FileExistsError(f"{self._path} holds something else; set memory.aging_persist_dir elsewhere")
        # No WAL: what is forgotten would stay in it until a checkpoint that any reader can put off.
        for setting in ("journal_mode = DELETE", "secure_delete = ON", "temp_store = MEMORY", "synchronous = NORMAL"):
            db.execute(f"PRAGMA {setting}").fetchall()
        db.create_function("warmth", 2, self._warmth, deterministic=True)
        db.execute("BEGIN IMMEDIATE")  # two processes may find the file empty
        with db:
            if not _tables(db):
                if was_there:
                    log.warning("%s is empty; credit starts cold", self._path)
                for statement in _SCHEMA:
                    db.execute(statement)
        self._path.chmod(0o600)
        if _pragma(db, "user_version") != _VERSION or _pragma(db, "quick_check") != "ok":
            raise sqlite3.DatabaseError("it fails its check")
        self._bind(db)

    def _bind(self, db: sqlite3.Connection) -> None:
        bound = [fingerprint for (fingerprint,) in db.execute("SELECT fingerprint FROM bound")]
        if bound == [self._fingerprint]:
            return
        if bound:
            log.warning("%s holds the credit of another model or cache layout; credit starts cold", self._path)
        db.execute("BEGIN IMMEDIATE")
        with db:
            db.execute("DELETE FROM bound")
            db.execute("DELETE FROM credit")
            db.execute("INSERT INTO bound VALUES (?)", (self._fingerprint,))
        db.execute("VACUUM")

    def _write(self, db: sqlite3.Connection, batch: Collection[StoredCredit]) -> None:
        db.execute("BEGIN IMMEDIATE")
        with db:
            db.executemany(
                "INSERT OR REPLACE INTO credit VALUES (?, ?, ?, ?)",
                [(one.credit.page, one.credit.parent, one.credit.weight, one.at) for one in batch],
            )
            count = int(db.execute("SELECT count(*) FROM credit").fetchone()[0])
            if count > self._max_entries:
                excess = count - int(self._max_entries * _KEPT_WHEN_FULL)
                db.execute(
                    "DELETE FROM credit WHERE page IN (SELECT page FROM credit ORDER BY warmth(weight, at) LIMIT ?)",
                    (excess,),
                )

    def _forget(self, db: sqlite3.Connection, doomed: set[bytes]) -> None:
        children: dict[bytes, list[bytes]] = {}
        for page, parent in db.execute("SELECT page, parent FROM credit WHERE parent IS NOT NULL"):
            children.setdefault(parent, []).append(page)
        waiting = list(doomed)
        while waiting:
            following = children.pop(waiting.pop(), [])
            doomed.update(following)
            waiting += following
        db.execute("BEGIN IMMEDIATE")
        with db:
            db.executemany("DELETE FROM credit WHERE page = ?", [(page,) for page in doomed])
        # SQLite zeroes what it deletes, but not what it left behind when it moved rows between its pages before.
        db.execute("VACUUM")

    def _warmth(self, weight: float, at: float) -> float:
        """Orders credits as their weights at any one time would; what cannot be a weight comes first."""
        is_sound = isinstance(weight, float) and isinstance(at, float) and weight > 0
        return math.log2(weight) + at / self._half_life if is_sound else -math.inf


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master")}


def _pragma(db: sqlite3.Connection, name: str) -> object:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def _is_sound(stored: StoredCredit) -> bool:
    """SQLite takes a value of any type in any column, and so does a byte that flipped."""
    credit = stored.credit
    return (
        isinstance(credit.page, bytes)
        and isinstance(credit.parent, bytes | None)
        and isinstance(credit.weight, float)
        and isinstance(stored.at, float)
        and math.isfinite(stored.at)
        and 0.0 < credit.weight < math.inf
    )
