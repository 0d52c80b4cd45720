"""Compares eviction orders of recurrent checkpoints on real agent sessions, without a model.

    python benchmarks/checkpoints.py [--quick] [--traces DIR] [--cost D E] [--json FILE] [--png FILE] [--jobs N]

A hybrid model resumes a prompt at a checkpoint of its recurrent state and computes the rest. Replays the Claude Code
sessions of 4 and of 16 users on 16 to 128 checkpoints, under the policy module that the engine runs and under others,
and reports what is computed again: its cost in percent of computing every prompt from its start, its tokens, and how
much less than under `lru` that costs, with 95 % bootstrap intervals over sessions. Exits with 1 where the default
misses what is required of it: 25 % less than `lru` with 16 users and 32 slots, and nowhere more.

Checkpoints are made where the engine makes them, at the end of the head, of the prompt and of the answer; and for
comparison at ends of prompts alone. The pages of keys and values below a checkpoint are taken to be there always: with
few of them, what is lost to both orders grows and their difference shrinks. Positions are known to 64 tokens. An answer
is taken to be part of the next prompt that has room for it. Everything else is as in `traces.py`.

D and E of the cost D * (p - q) + E * (p * p - q * q), in thousands of tokens, default to those of Qwen3-Next-80B-A3B by
operations: D / E = 61. 488 would be Nemotron-H-8B, which has less attention for its size.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from checkpoint_study.candidates import DEFAULT, Candidate, all_candidates
from checkpoint_study.prompts import Placement, load_users, prompts_of
from checkpoint_study.study import SLOTS, Case, Outcome, outcomes, requirements
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from trace_study.estimates import Estimate
from trace_study.requirements import Requirement

from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost

DEFAULT_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
USERS = (4, 16)
PLACEMENTS = (Placement.HEAD_ENDS | Placement.PROMPT_ENDS | Placement.ANSWER_ENDS, Placement.PROMPT_ENDS)

console = Console(width=None if sys.stdout.isatty() else 160)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares eviction orders of recurrent checkpoints on real sessions.")
    parser.add_argument("--traces", type=Path, default=DEFAULT_TRACES, help="folder of the traces")
    parser.add_argument("--quick", action="store_true", help="the main orders only")
    parser.add_argument(
        "--cost",
        type=float,
        nargs=2,
        metavar=("D", "E"),
        default=(TYPICAL.linear, TYPICAL.quadratic),
        help="prefill cost, positions in thousands of tokens; only the ratio matters",
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--png", type=Path, help="also draw recomputed cost against slots here")
    parser.add_argument("--jobs", type=int, default=1, help="processes to replay in")
    return parser.parse_args()


def load_cases(folder: Path, cost: PrefillCost) -> list[Case]:
    workloads = {users: load_users(folder, users) for users in USERS}
    return [
        Case(users, placement, prompts_of(workloads[users], placement), cost)
        for placement in PLACEMENTS
        for users in USERS
    ]


def candidates(quick: bool) -> list[Candidate]:
    return [candidate for candidate in all_candidates() if candidate.quick or not quick]


def run(cases: Sequence[Case], quick: bool, jobs: int) -> list[Outcome]:
    total = len(cases) * len(SLOTS) * (len(candidates(quick)) + 1)
    found: dict[int, list[Outcome]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("replaying", total=total)
        if jobs == 1:
            for number, case in enumerate(cases):
                found[number] = []
                for outcome in outcomes(case, candidates(quick), lambda run: progress.update(task, description=run)):
                    found[number].append(outcome)
                    progress.advance(task)
        else:
            with ProcessPoolExecutor(jobs) as pool:
                running = {pool.submit(run_case, case, quick): number for number, case in enumerate(cases)}
                for done in as_completed(running):
                    found[running[done]] = done.result()
                    progress.advance(task, len(done.result()))
    return [outcome for number in range(len(cases)) for outcome in found[number]]


def run_case(case: Case, quick: bool) -> list[Outcome]:
    return list(outcomes(case, candidates(quick), lambda run: None))


def shown(estimate: Estimate, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{estimate.value:{sign}.2f} [dim]({estimate.low:{sign}.1f} to {estimate.high:{sign}.1f})[/]"


def table(workload: str, found: Sequence[Outcome]) -> Table:
    shown_table = Table(title=workload)
    for heading in ("slots", "order", "recomputed cost %", "less than lru, %", "recomputed tokens"):
        shown_table.add_column(heading, justify="left" if heading == "order" else "right")
    for index, outcome in enumerate(found):
        shown_table.add_row(
            str(outcome.slots),
            outcome.policy,
            shown(outcome.recomputed_cost),
            shown(outcome.saved_of_lru, signed=True),
            f"{outcome.recomputed_tokens:,}",
            style="bold" if outcome.policy == DEFAULT else None,
            end_section=index + 1 < len(found) and found[index + 1].slots != outcome.slots,
        )
    return shown_table


def report(found: Sequence[Outcome]) -> list[Requirement]:
    """Prints everything; returns what is required of the default."""
    for workload in dict.fromkeys(outcome.workload for outcome in found):
        console.print(table(workload, [outcome for outcome in found if outcome.workload == workload]))
    required = requirements(found)
    for requirement in required:
        mark = "[green]met[/]" if requirement.met else "[red]missed[/]"
        console.print(f"{mark} {requirement.rule}: {requirement.value:+.1f} %, at least {requirement.bound:+.0f} %")
    return required


def main() -> int:
    options = parse()
    cost = PrefillCost(*options.cost)
    if not options.traces.is_dir():
        console.print(f"[bold red]SKIPPED:[/] nothing was measured, there is no folder {options.traces}; see --traces.")
        return 0
    found = run(load_cases(options.traces, cost), options.quick, options.jobs)
    required = report(found)
    if options.json is not None:
        figures = {
            "cost": {"D": cost.linear, "E": cost.quadratic},
            "outcomes": [outcome.as_json() for outcome in found],
            "requirements": [{"rule": r.rule, "value": r.value, "bound": r.bound, "met": r.met} for r in required],
        }
        options.json.write_text(json.dumps(figures, indent=1))
    if options.png is not None:
        from checkpoint_study.plot import draw  # matplotlib takes a second to import

        draw(found, options.png)
    return 0 if all(requirement.met for requirement in required) else 1


if __name__ == "__main__":
    sys.exit(main())
