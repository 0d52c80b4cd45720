"""Checks the engine on this machine's card and writes a report.

    python -m gpu_check [--state FOLDER] [--report FILE] [--seconds 700] [--only PART ...] [--engine cpu]

Nothing is fetched. Each part is reported as it ends and kept in the state folder: a run that was cut short goes on
where it was. Without a card it says so and ends with status 0; with `--engine cpu` the same parts run over tiny models
on the CPU, all but the build and the conversion. Ends with 1 where a part failed or was not run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from gpu_check import report
from gpu_check.card import Surroundings, read_surroundings
from gpu_check.environment import PROJECT, part_environment
from gpu_check.part_table import PARTS
from gpu_check.progress import PartProgress
from gpu_check.runner import Runner

_GIBIBYTE = 2**30


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--state", type=Path, default=PROJECT / ".gpu-check", help="kept between runs, .gpu-check")
    parser.add_argument("--report", type=Path, help="where the JSON goes, report.json in the state folder")
    parser.add_argument("--seconds", type=float, default=700.0, help="for all parts together, 700")
    parser.add_argument("--only", nargs="+", default=[], choices=[part.name for part in PARTS], metavar="PART")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    began = time.monotonic()
    surroundings = read_surroundings()
    if options.engine == "cuda":
        if not surroundings.has_card:
            console.print(f"No card to check: {surroundings.why_no_card()}. Nothing was run.", highlight=False)
            return 0
        if missing := surroundings.missing():  # or has it elsewhere: the build itself says what it does not find
            console.print(f"Not found: {'; '.join(missing)}.", highlight=False)
    return _run(options, surroundings, console, began)


def _run(options: argparse.Namespace, surroundings: Surroundings, console: Console, began: float) -> int:
    state = options.state.resolve()
    state.mkdir(parents=True, exist_ok=True)
    progress = PartProgress(console)
    runner = Runner(
        engine=options.engine,
        state=state,
        seconds=options.seconds - (time.monotonic() - began),
        environment=part_environment(
            options.engine,
            state,
            surroundings.architectures if options.engine == "cuda" else None,
            surroundings.machine.memory_free / _GIBIBYTE,
            surroundings.machine.nvcc,
        ),
        watcher=progress,
        only=frozenset(options.only),
    )
    path = options.report or state / "report.json"

    def write() -> None:
        """After each part: the run may be ended from outside."""
        report.write(path, report.as_json(surroundings, runner.outcomes, options.engine, time.monotonic() - began))

    progress.after_each = write
    with progress.bar:
        outcomes = runner.run()
    console.print(report.table(outcomes))
    console.print(f"The report is {path}", highlight=False)
    wanted = [outcomes[part.name] for part in PARTS if not (part.needs_card and options.engine == "cpu")]
    wanted = [outcome for outcome in wanted if outcome.error != "it was not asked for"]
    return 0 if all(outcome.status == "done" for outcome in wanted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
