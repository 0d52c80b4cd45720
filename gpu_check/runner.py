"""Runs the parts one after the other, each in a process with a time of its own, and all within one time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpu_check.check import EngineName
from gpu_check.environment import PROJECT
from gpu_check.outcome import Outcome, Outcomes
from gpu_check.part_table import PARTS, Part

_LEAST_SECONDS = 5.0
"""A part is not begun with less."""
_LAST_LINES = 15


class Watcher(Protocol):
    """Hears of the parts as they run."""

    def started(self, part: Part) -> None: ...
    def says(self, part: Part, text: str) -> None: ...
    def ended(self, part: Part, outcome: Outcome) -> None: ...


@dataclass(kw_only=True)
class Runner:
    """`seconds` are for all parts together. `only`: names of the parts to run; empty: all."""

    engine: EngineName
    state: Path
    seconds: float
    environment: Mapping[str, str]
    watcher: Watcher
    parts: tuple[Part, ...] = PARTS
    only: frozenset[str] = frozenset()
    clock: Callable[[], float] = time.monotonic
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    last_words: str = ""
    """Of the part that runs."""

    def run(self) -> dict[str, Outcome]:
        """By part, in their order. Those that were done before are not run again."""
        ends = self.clock() + self.seconds
        kept = Outcomes(self.state / "outcomes" / self.engine)
        for part in self.parts:
            before = kept.read(part.name)
            if before is not None and before.status == "done":
                self.outcomes[part.name] = before
                self.watcher.ended(part, before)
                continue
            outcome = self._unrunnable(part, ends - self.clock())
            if outcome is None:
                self.watcher.started(part)
                outcome = self._run(part, min(part.seconds, ends - self.clock()), kept)
            self.outcomes[part.name] = outcome
            self.watcher.ended(part, outcome)
        return self.outcomes

    def _unrunnable(self, part: Part, left: float) -> Outcome | None:
        if self.only and part.name not in self.only:
            return Outcome(status="not run", error="it was not asked for")
        if part.needs_card and self.engine == "cpu":
            return Outcome(status="not run", error="it needs a card")
        lacking = [
            name for name in part.needs if self.outcomes[name].status != "done" and not self._has_no_card_for(name)
        ]
        if lacking:
            return Outcome(status="not run", error=f"it needs {' and '.join(lacking)}")
        if left < _LEAST_SECONDS:
            return Outcome(status="not run", error="no time was left")
        return None

    def _has_no_card_for(self, name: str) -> bool:
        """A CPU loads the models as they are."""
        return self.engine == "cpu" and next(part for part in self.parts if part.name == name).needs_card

    def _run(self, part: Part, seconds: float, kept: Outcomes) -> Outcome:
        kept.path(part.name).unlink(missing_ok=True)
        self.last_words = "nothing"
        began = self.clock()
        log = self.state / "logs" / f"{part.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "gpu_check.part_process", part.name, part.function]
        command += ["--engine", self.engine, "--state", str(self.state), "--seconds", str(seconds)]
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=dict(self.environment),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # what it starts itself, compilers and engines, ends with it
            )
            reader = threading.Thread(target=self._pass_on, args=(part, process), daemon=True)
            reader.start()
            is_late = _wait(process, seconds)
        took = round(self.clock() - began, 1)
        outcome = kept.read(part.name)
        if outcome is not None:
            return outcome
        words = "\n".join(log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:])
        if is_late:
            told = f"it was ended after {seconds:.0f} s; it had said last: {self.last_words}\n{words}"
            return Outcome(status="out of time", seconds=took, error=told.rstrip())
        return Outcome(status="failed", seconds=took, error=f"its process ended with {process.returncode}: {words}")

    def _pass_on(self, part: Part, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.last_words = line.rstrip()
            self.watcher.says(part, self.last_words)


def _wait(process: subprocess.Popen[str], seconds: float) -> bool:
    """Whether it was late and has been ended, with all that it started. Also where this process is interrupted."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    else:
        return False
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
