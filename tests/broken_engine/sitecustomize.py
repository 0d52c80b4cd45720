"""Breaks the engine in its own process, as a kernel or a driver would, when a test says so.

Python imports this by itself where this folder is on `PYTHONPATH`, which an engine's process has of its parent. What
the file at `BROKEN_ENGINE` says happens to the next step, once unless the file says `always`:

- `iterate TEXT`: a step of all requests raises `RuntimeError(TEXT)`;
- `prefill TEXT`: so does one job's prefill, in a way that exllamav3 contains;
- `sleep SECONDS`: the step takes that long;
- `spawn SECONDS`: the engine starts a process of its own that would live that long.
"""

import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "exllamav3.generator.generator"


class Breaker(importlib.abc.MetaPathFinder):
    """Passes the module through, with `Generator.iterate` changed."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            change(module.Generator)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


def change(generator_class: Any) -> None:
    iterate = generator_class.iterate

    def broken_iterate(self: Any) -> Any:
        what, _, rest = order().partition(" ")
        match what:
            case "iterate":
                raise RuntimeError(rest)
            case "prefill":
                for job in [*self.pending_jobs, *self.active_jobs][-1:]:
                    job.prefill = raising(RuntimeError(rest))
            case "sleep":
                time.sleep(float(rest))
            case "spawn":
                subprocess.Popen(["sleep", rest], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return iterate(self)

    generator_class.iterate = broken_iterate


def order() -> str:
    path = Path(os.environ["BROKEN_ENGINE"])
    try:
        words = path.read_text()
    except FileNotFoundError:
        return ""
    if words.startswith("always "):
        return words.removeprefix("always ")
    path.unlink()
    return words


def raising(error: Exception) -> Any:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    return fail


if "exllamav3_adapters.host" in sys.orig_argv and "BROKEN_ENGINE" in os.environ:
    sys.meta_path.insert(0, Breaker())
