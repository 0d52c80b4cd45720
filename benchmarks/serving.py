"""Measures the gateway as its clients see it, with both sides of each figure from one run.

    python benchmarks/serving.py [--only NAME ...] [--samples 20] [--restarts 3] [--json FILE]

Starts the proxy on `litellm_config.yaml` with a state folder of its own, and beside it exllamav3's synchronous loop
over the same model; only one of them computes at a time. Exits with 1 where a bound is missed. Run it on a machine
that does nothing else: the load average is printed with the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine_loop import engine_loop
from figures.beside_prefill import measure_beside_prefill
from figures.decode import measure_decode
from figures.first_token import measure_first_token
from figures.idle import measure_idle
from figures.replay_wait import measure_replay_wait
from figures.restart import measure_restart
from gateway_session import SETTLING_CHAT, SETTLING_TOKENS, console, engine_settings, gateway_session, write_config
from report import Report

BESIDE_THE_LOOP = ("first-token", "decode")
ONE_GATEWAY = ("idle", *BESIDE_THE_LOOP, "beside-prefill")
NAMES = (*ONE_GATEWAY, "replay-wait", "restart")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="measure this alone; may be given again")
    parser.add_argument("--samples", type=int, default=20, help="samples of most figures, 20")
    parser.add_argument("--restarts", type=int, default=3, help="restarts of the gateway, 3")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    return parser.parse_args()


async def measure(options: argparse.Namespace, folder: Path) -> Report:
    names = options.only or NAMES
    report = Report()
    report.note_load("at the start")
    if set(names) & set(ONE_GATEWAY):
        await measure_one_gateway(names, options.samples, make_folder(folder, "serving"), report)
    if "replay-wait" in names:
        console.print("[bold]replay-wait")
        report.add("replay-wait", await measure_replay_wait(make_folder(folder, "replay_wait"), options.samples))
    if "restart" in names:
        console.print("[bold]restart")
        figures = await measure_restart(make_folder(folder, "restart"), options.samples, options.restarts)
        report.add("restart", figures)
    return report


async def measure_one_gateway(names: Sequence[str], samples: int, folder: Path, report: Report) -> None:
    """The figures that need nothing of the gateway but that it runs."""
    config = write_config(folder)
    async with gateway_session(config, "proxy.log") as session:
        await session.settle()
        console.print("[bold]idle")
        report.add("idle", await measure_idle(session))
        if set(names) & set(BESIDE_THE_LOOP):
            async with engine_loop(engine_settings(config)) as loop:
                await loop.run(SETTLING_CHAT, max_tokens=SETTLING_TOKENS)
                if "first-token" in names:
                    console.print("[bold]first-token")
                    report.add("first-token", await measure_first_token(session, loop, samples))
                if "decode" in names:
                    console.print("[bold]decode")
                    report.add("decode", await measure_decode(session, loop, samples))
        if "beside-prefill" in names:
            console.print("[bold]beside-prefill")
            report.add("beside-prefill", await measure_beside_prefill(session))


def make_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="litellm-exllamav3-bench-") as name:
        report = asyncio.run(measure(options, Path(name)))
    console.print(report.table())
    console.print("load average of the last minute:", report.load_averages)
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_json(), indent=1))
    for figure in report.missed:
        console.print(f"[red]missed:[/] {figure.name}, {figure.statistic}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
