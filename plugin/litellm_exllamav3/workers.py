"""One proxy worker only: each worker would load every model again."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path


class TooManyWorkers(Exception):
    """The proxy was started with more than one worker."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"litellm-exllamav3 needs a proxy with one worker, and {found}: every worker would load each model again. "
            "Start the proxy without --num_workers, NUM_WORKERS, DEFAULT_NUM_WORKERS_LITELLM_PROXY and "
            "WEB_CONCURRENCY, or set them to 1; one worker serves many requests side by side."
        )


def refuse_more_workers(environ: Mapping[str, str]) -> None:
    """Raises `TooManyWorkers` if `environ` says that this process is one of several.

    LiteLLM's command line writes the number it uses to NUM_WORKERS before it starts the server, whichever server it
    is, so that one decides. A server started without it (`uvicorn litellm.proxy.proxy_server:app`, gunicorn) reads
    WEB_CONCURRENCY.
    """
    for name in ("NUM_WORKERS", "WEB_CONCURRENCY"):
        value = environ.get(name, "").strip()
        if not value:
            continue
        if value.isdecimal() and int(value) > 1:
            raise TooManyWorkers(f"{name} is {value}")
        return


class WorkerLock:
    """Held by the one worker of a server that spawns its workers; other servers may use the same folder.

    `uvicorn --workers 2` puts its number nowhere that a worker can read, so its workers meet at a lock that bears
    their supervisor's process id. A process that nobody spawned has no siblings and takes no lock. The kernel frees
    the lock when the process ends, however it ends.
    """

    def __init__(self, state_dir: Path, supervisor_pid: int | None) -> None:
        self._path = state_dir / f"worker-of-{supervisor_pid}.lock"
        self._fd: int | None = None
        if supervisor_pid is not None:
            self._fd = self._acquire()

    @classmethod
    def of_this_process(cls, state_dir: Path) -> WorkerLock:
        """Raises `TooManyWorkers` while a sibling holds it."""
        supervisor = multiprocessing.parent_process()
        return cls(state_dir, None if supervisor is None else supervisor.pid)

    def _acquire(self) -> int | None:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None  # A folder that cannot be written keeps no state either; it is no reason not to serve.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise TooManyWorkers("this one was started beside another by the same server") from error
        return fd

    def release(self) -> None:
        """May be called more than once."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        # Removed while held. A sibling that opened it before holds another file then, which is harmless: this
        # worker is going.
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(fd)
