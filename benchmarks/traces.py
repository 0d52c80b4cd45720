"""Compares eviction policies on public request traces, without a model.

    python benchmarks/traces.py [--quick] [--traces DIR] [--json FILE] [--png FILE] [--jobs N]

Replays the traces request by request on a fast equivalent of exllamav3's page table, which a test holds equal to the
real one, and reports token hit rates and those of conversations' first requests next to stock `tree`, with 95 %
bootstrap intervals over sessions. `--quick` compares the main policies only. Exits with 1 where the default policy
misses what is required of it.

The figures stand on these assumptions: requests run one after another; answers fill no pages; Claude Code sessions
share their head where its tools and its system prompt have the same lengths, and are dealt to users in an order drawn
once, with pauses of at most an hour within a session and of five minutes between two.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from trace_study import claude_code, mooncake
from trace_study.candidates import Candidate, all_candidates, default_policy
from trace_study.estimates import Estimate
from trace_study.requirements import Requirement, requirements
from trace_study.scan_overlay import with_scans
from trace_study.study import Case, Outcome, claude_code_case, mooncake_case, outcomes

DEFAULT_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"

console = Console(width=None if sys.stdout.isatty() else 200)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares eviction policies on public request traces.")
    parser.add_argument("--traces", type=Path, default=DEFAULT_TRACES, help="folder of the traces")
    parser.add_argument("--quick", action="store_true", help="the main policies only")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--png", type=Path, help="also draw hit rate against cache size here")
    parser.add_argument("--jobs", type=int, default=1, help="processes to replay in")
    return parser.parse_args()


def load_cases(folder: Path) -> list[Case]:
    sessions = claude_code.load_sessions(folder)
    by_users = [claude_code.as_users(sessions, users) for users in (4, 16)]
    return [
        *(claude_code_case(workload) for workload in by_users),
        *(mooncake_case(mooncake.load(folder, trace)) for trace in mooncake.FILE_NAMES),
        *(claude_code_case(with_scans(workload)) for workload in by_users),
    ]


def run(cases: Sequence[Case], quick: bool, jobs: int) -> list[Outcome]:
    names = [candidate.name for candidate in all_candidates() if candidate.quick or not quick]
    total = sum(len(case.capacities) for case in cases) * len(names)
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


def candidates(quick: bool) -> list[Candidate]:
    return [candidate for candidate in all_candidates() if candidate.quick or not quick]


def run_case(case: Case, quick: bool) -> list[Outcome]:
    return list(outcomes(case, candidates(quick), lambda run: None))


def shown(estimate: Estimate, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{estimate.value:{sign}.2f} [dim]({estimate.low:{sign}.1f} to {estimate.high:{sign}.1f})[/]"


def table(workload: str, found: Sequence[Outcome]) -> Table:
    example = found[0]
    shown_table = Table(
        title=f"{workload}: {example.requests:,} requests, {example.first_requests:,} of them first in a conversation"
    )
    for heading in (
        "cache",
        "policy",
        "token hit %",
        "less tree",
        "first requests %",
        "less tree",
        "recomputed tokens",
    ):
        shown_table.add_column(heading, justify="left" if heading in ("cache", "policy") else "right")
    for index, outcome in enumerate(found):
        is_default = outcome.policy == default_policy().name
        shown_table.add_row(
            outcome.size,
            outcome.policy,
            shown(outcome.token_hit_rate),
            shown(outcome.token_hit_difference, signed=True),
            shown(outcome.first_request_hit_rate),
            shown(outcome.first_request_difference, signed=True),
            f"{outcome.recomputed_tokens:,}",
            style="bold" if is_default else None,
            end_section=index + 1 < len(found) and found[index + 1].size != outcome.size,
        )
    return shown_table


def report(found: Sequence[Outcome]) -> list[Requirement]:
    """Prints everything; returns what is required of the default policy."""
    for workload in dict.fromkeys(outcome.workload for outcome in found):
        console.print(table(workload, [outcome for outcome in found if outcome.workload == workload]))
    required = [
        requirement
        for outcome in found
        if outcome.policy == default_policy().name
        for requirement in requirements(outcome)
    ]
    for requirement in required:
        mark = "[green]met[/]" if requirement.met else "[red]missed[/]"
        console.print(f"{mark} {requirement.rule}: {requirement.value:+.2f} points, at least {requirement.bound:+.1f}")
    return required


def main() -> int:
    options = parse()
    if not options.traces.is_dir():
        console.print(f"[bold red]SKIPPED:[/] nothing was measured, there is no folder {options.traces}; see --traces.")
        return 0
    found = run(load_cases(options.traces), options.quick, options.jobs)
    required = report(found)
    if options.json is not None:
        figures = {
            "outcomes": [outcome.as_json() for outcome in found],
            "requirements": [{"rule": r.rule, "value": r.value, "bound": r.bound, "met": r.met} for r in required],
        }
        options.json.write_text(json.dumps(figures, indent=1))
    if options.png is not None:
        from trace_study.plot import draw  # matplotlib takes a second to import

        draw(found, options.png)
    return 0 if all(requirement.met for requirement in required) else 1


if __name__ == "__main__":
    sys.exit(main())
