"""One part in a process of its own: `python -m gpu_check.part_process NAME MODULE:FUNCTION --engine ... --state ...`.

What it is at goes to stdout, a line each time; its outcome goes into the state folder.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
import traceback
from pathlib import Path

from gpu_check.check import Check, Figures, PartFailed
from gpu_check.outcome import Outcome, Outcomes
from gpu_check.part_table import Part

_LONGEST_ERROR = 6000
"""Characters, from the end: what an exception says comes last."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpu_check.part_process")
    parser.add_argument("name")
    parser.add_argument("function", help="module:function")
    parser.add_argument("--engine", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    check = Check(engine=options.engine, state=options.state, seconds=options.seconds, say=_say)
    outcome = run_part(Part(name=options.name, function=options.function, seconds=options.seconds), check)
    Outcomes(options.state / "outcomes" / options.engine).write(options.name, outcome)
    return 0 if outcome.status == "done" else 1


def run_part(part: Part, check: Check) -> Outcome:
    """Never raises: what a part raises is its outcome."""
    began = time.monotonic()
    try:
        found = part.run(check)
        figures = found if isinstance(found, dict) else asyncio.run(_figures_of(found))
    except PartFailed as failed:
        return Outcome(status="failed", seconds=_since(began), error=str(failed))
    except Exception:
        return Outcome(status="failed", seconds=_since(began), error=traceback.format_exc()[-_LONGEST_ERROR:])
    return Outcome(status="done", seconds=_since(began), figures=figures)


async def _figures_of(found: object) -> Figures:
    figures: Figures = await found  # type: ignore[misc]
    return figures


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
