"""Keeps a `CreditFile` up to date from a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future

from exllamav3_adapters.exl3.credit_file import CreditFile, StoredCredit

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
"""What a kill can cost of the credit."""
RETRY_SECONDS = 30.0


class CreditWriter:
    """Methods may be called from any thread and do not wait for the disk, but for `start` and `close`.

    What the disk refuses is logged once, kept in memory and tried again; nothing is raised.
    """

    def __init__(
        self,
        file: CreditFile,
        *,
        max_pending: int,
        flush_seconds: float = FLUSH_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """At most `max_pending` credits wait for a disk that fails; the oldest go first."""
        self._file = file
        self._max_pending = max_pending
        self._flush_seconds = flush_seconds
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._pending: dict[bytes, StoredCredit] = {}
        self._forgotten: set[bytes] = set()
        self._waiting: list[Future[None]] = []  # for all that was said before to have been tried
        self._closing = False
        self._failing = False
        self._loaded: Future[list[StoredCredit]] = Future()
        self._thread = threading.Thread(target=self._run, name="exllamav3-credit", daemon=True)

    def start(self) -> list[StoredCredit]:
        """Starts the thread and waits for what the file holds, the coldest first; nothing where it cannot be read."""
        self._thread.start()
        return self._loaded.result()

    def put(self, batch: Iterable[StoredCredit]) -> None:
        with self._changed:
            for stored in batch:
                self._pending.pop(stored.credit.page, None)
                self._pending[stored.credit.page] = stored
            self._shorten()
            self._changed.notify()

    def forget(self, pages: Collection[bytes]) -> None:
        """Drops these pages and what follows them in the file. Of what still waits, `pages` must name it all."""
        with self._changed:
            for page in pages:
                self._pending.pop(page, None)
            self._forgotten.update(pages)
            self._changed.notify()

    def settled(self) -> Future[None]:
        """Done when all that was put or forgotten until now is on disk, or the disk has refused it."""
        done: Future[None] = Future()
        with self._changed:
            if self._closing:
                done.set_result(None)
            else:
                self._waiting.append(done)
                self._changed.notify()
        return done

    def close(self) -> None:
        """Writes what waits and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # --- on its thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        loaded: list[StoredCredit] = []

        def read() -> None:
            loaded.extend(self._file.read())

        self._try(read)
        self._loaded.set_result(loaded)
        closing = False
        while not closing:
            closing = self._write_batch()
        self._file.close()

    def _write_batch(self) -> bool:
        """Waits until there is something, then a little for more, and writes it. True: it was the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._forgotten or self._is_urgent())
            self._changed.wait_for(self._is_urgent, self._retry_seconds if self._failing else self._flush_seconds)
            pending, self._pending = self._pending, {}
            forgotten, self._forgotten = self._forgotten, set()
            waiting, self._waiting = self._waiting, []
            closing = self._closing
        # A page that was forgotten and has come back since is written after it was dropped.
        if forgotten and not self._try(lambda: self._file.forget(forgotten)):
            self._put_back({}, forgotten)
        if pending and not self._try(lambda: self._file.write(pending.values())):
            self._put_back(pending, set())
        for done in waiting:
            done.set_result(None)
        return closing

    def _is_urgent(self) -> bool:
        return self._closing or bool(self._waiting)

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # whatever it is, credit is not worth an engine
            if not self._failing:
                log.warning("page credit is kept in memory only until its file can be used: %s", error)
            self._failing = True
            return False
        if self._failing:
            log.info("page credit is on disk again")
        self._failing = False
        return True

    def _put_back(self, pending: dict[bytes, StoredCredit], forgotten: set[bytes]) -> None:
        with self._changed:
            kept = {page: stored for page, stored in pending.items() if page not in self._forgotten}
            self._pending = kept | self._pending
            self._forgotten |= forgotten
            self._shorten()

    def _shorten(self) -> None:
        while len(self._pending) > self._max_pending:
            self._pending.pop(next(iter(self._pending)))
