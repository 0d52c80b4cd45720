"""The store as a SQLite file: its permissions, its damage, its bytes. Used on one thread."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from litellm_exllamav3.store.errors import reason
from litellm_exllamav3.store.migrations import migrate

logger = logging.getLogger("litellm_exllamav3.store")

FILE_NAME = "prefixes.db"
_SIDE_FILES = ("-wal", "-shm", "-journal")
_BUSY_SECONDS = 5.0
_BUSY_MILLISECONDS_OF_TRUNCATION = 250
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    # Deleted prompts are overwritten, and never copied to a temporary file.
    "PRAGMA secure_delete=ON",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA journal_size_limit=4194304",
)
_DATABASE_ERRORS = (DBAPIError, sqlite3.Error)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_damage(error: BaseException) -> bool:
    """Whether the file itself is at fault, not the disk, a lock or a permission."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


class SqliteFile:
    """`prefixes.db` in `folder`. Two processes may have it open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME

    def open(self, now: float) -> Engine:
        """The file, made if need be, sound and of the present schema.

        A damaged one is moved aside. Raises OSError, DBAPIError or StoreUnavailable where there can be none now.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._open_sound(now)
        except _DATABASE_ERRORS as error:
            if not is_damage(error):
                raise
        with self._folder_lock():
            try:
                # Another process may have moved it while this one waited.
                return self._open_sound(now)
            except _DATABASE_ERRORS as error:
                if not is_damage(error):
                    raise
                self._move_aside(now, error)
        return self._open_sound(now)

    def open_read_only(self) -> Engine:
        """For a folder that cannot be written. Raises as `open` does."""
        if not self.path.exists():
            raise FileNotFoundError(self.path)
        # Without `immutable` SQLite would make its side files first.
        location = f"file:{quote(str(self.path))}?mode=ro&immutable=1"
        return create_engine(URL.create("sqlite", database=location, query={"uri": "true"}), hide_parameters=True)

    def identity(self) -> tuple[int, int] | None:
        """Device and inode: another pair is another file, though the name be the same. None: no file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def condemn(self, identity: tuple[int, int] | None, now: float, error: BaseException) -> None:
        """Moves the file aside, if it is still the one of that identity."""
        with self._folder_lock():
            if identity is not None and self.identity() == identity:
                self._move_aside(now, error)

    def remove_moved_aside(self) -> None:
        """Damaged files may hold what is to be forgotten, and cannot be asked."""
        for path in list(self.folder.glob(f"{FILE_NAME}.damaged-*")):
            path.unlink(missing_ok=True)

    def truncate_log(self, engine: Engine) -> bool:
        """Moves the write-ahead log into the file and empties it. False if another process is in the way.

        `secure_delete` overwrites what was deleted in the file, so afterwards no byte of it is left.
        """
        with contextlib.closing(engine.raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS_OF_TRUNCATION}")
            try:
                busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                logger.debug("emptying the log of %s is put off: %s", self.path, error)
                return False
            finally:
                cursor.execute(f"PRAGMA busy_timeout={int(_BUSY_SECONDS * 1000)}")
        return not busy

    def _open_sound(self, now: float) -> Engine:
        self._make_private()
        url = URL.create("sqlite", database=str(self.path))
        engine = create_engine(
            url, pool_size=1, max_overflow=0, hide_parameters=True, connect_args={"timeout": _BUSY_SECONDS}
        )
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        try:
            with engine.connect() as connection:
                sound = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if sound != "ok":
                raise _damage(f"quick_check: {sound}")
            migrate(engine, now)
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _make_private(self) -> None:
        """SQLite gives its side files the mode of the file itself."""
        # Never opened while it exists: closing any descriptor of a file drops the locks SQLite holds on it.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        for suffix in ("", *_SIDE_FILES):
            with contextlib.suppress(FileNotFoundError):
                os.chmod(f"{self.path}{suffix}", 0o600)

    def _move_aside(self, now: float, error: BaseException) -> None:
        aside = self._free_name(now)
        logger.error(
            "the store %s is damaged (%s): moved to %s, and a new one begun", self.path, reason(error), aside.name
        )
        for suffix in ("", *_SIDE_FILES):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")

    def _free_name(self, now: float) -> Path:
        stamp = int(now)
        while (aside := self.path.with_name(f"{FILE_NAME}.damaged-{stamp}")).exists():
            stamp += 1
        return aside

    @contextlib.contextmanager
    def _folder_lock(self) -> Iterator[None]:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _damage(message: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _prepare(connection: Any, _record: object) -> None:
    # The driver's own transactions leave DDL outside them and begin too late to keep another writer out.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
