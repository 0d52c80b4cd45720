"""Shows the parts as they run: one line that moves on a terminal, and a line a part everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from gpu_check.outcome import Outcome
from gpu_check.part_table import Part

_LINE_SECONDS: Final = 20.0
"""Between two lines of one part where there is no terminal."""


class PartProgress:
    """A `runner.Watcher`. `says` comes from another thread than the rest."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.after_each: Callable[[], None] = lambda: None
        """Called once a part has ended."""
        self.bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
        )
        self._task: TaskID | None = None
        self._said = 0.0

    def started(self, part: Part) -> None:
        self._said = time.monotonic()
        if self._console.is_terminal:
            self._task = self.bar.add_task(part.name, total=None)
        else:
            self._console.print(f"{part.name} …")

    def says(self, part: Part, text: str) -> None:
        if self._task is not None:
            self.bar.update(self._task, description=f"{part.name}: {escape(text)}")
        elif time.monotonic() - self._said > _LINE_SECONDS:
            self._said = time.monotonic()
            self._console.print(f"{part.name}: {escape(text)}", highlight=False)

    def ended(self, part: Part, outcome: Outcome) -> None:
        if self._task is not None:
            self.bar.remove_task(self._task)
            self._task = None
        first = outcome.error.strip().splitlines()[-1] if outcome.error.strip() else ""
        self._console.print(
            f"{part.name}: {outcome.status}, {outcome.seconds:.1f} s {escape(first)}".rstrip(), highlight=False
        )
        self.after_each()
