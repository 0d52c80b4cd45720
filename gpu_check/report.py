"""The report of a run, as JSON and as a table."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from gpu_check.card import Surroundings
from gpu_check.outcome import Outcome

FORM: Final = 1
"""Of the JSON. Raised when a key of it changes."""
_COLORS: Final = {"done": "green", "failed": "red", "out of time": "red", "not run": "yellow"}
_SHOWN: Final = 300


def as_json(surroundings: Surroundings, outcomes: Mapping[str, Outcome], engine: str, seconds: float) -> dict[str, Any]:
    """`seconds` are those of this run; a part's own may be of an earlier one."""
    return {
        "form": FORM,
        "engine": engine,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 1),
        **surroundings.as_json(),
        "parts": {
            name: {
                "status": outcome.status,
                "seconds": outcome.seconds,
                "figures": outcome.figures,
                "error": outcome.error,
            }
            for name, outcome in outcomes.items()
        },
    }


def write(path: Path, report: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.rename(path)


def table(outcomes: Mapping[str, Outcome]) -> Table:
    table = Table(title="Engine check", show_lines=True)
    for heading in ("part", "", "seconds", "figures"):
        table.add_column(heading)
    for name, outcome in outcomes.items():
        told = outcome.error if outcome.error else json.dumps(outcome.figures)
        shown = told if len(told) <= _SHOWN else told[:_SHOWN] + " …"
        color = _COLORS[outcome.status]
        table.add_row(name, f"[{color}]{outcome.status}[/]", f"{outcome.seconds:.1f}", escape(shown))
    return table
