"""Times an allocation on exllamav3's page table, with the stock order and with `aging_lfu`, without a model.

    python benchmarks/allocation.py [--allocations 200] [--json FILE]

Half of each table is held by running requests, half can be evicted; an allocation claims a prompt of new pages, marks
them computed and releases them, which is all that a policy has to follow. The two tables take turns. Exits with 1 where
`aging_lfu` is slower than the stock order, or at 50,000 pages more than 2.5 times as slow as at 1,000.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from trace_study.page_table import compute, make_page_table, page_hash

from exllamav3_adapters.cpu.install import install
from exllamav3_adapters.policies.aging_credit import AgingCredit

SIZES = (1_000, 10_000, 50_000)
MAX_GROWTH = 2.5
PROMPT_PAGES = 16
_HEAD_PAGES = 10
_CHAIN_PAGES = 40
_CHAINS_PER_HEAD = 4

Timings = dict[int, dict[str, list[float]]]
"""Seconds by allocation, by table size and order."""


def measure(sizes: tuple[int, ...], allocations: int) -> Timings:
    install()
    return {size: time_allocations(size, allocations) for size in sizes}


def time_allocations(num_pages: int, allocations: int) -> dict[str, list[float]]:
    tables = {"stock": make_page_table(num_pages), "aging_lfu": aging_table(num_pages)}
    names = {name: fill(table) for name, table in tables.items()}
    taken: dict[str, list[float]] = {name: [] for name in tables}
    gc.collect()
    gc.disable()
    try:
        for _ in range(allocations):
            for name, table in tables.items():
                hashes = [page_hash(next(names[name])) for _ in range(PROMPT_PAGES)]
                start = time.perf_counter()
                pages = compute(table, hashes)
                table.deallocate_pages(pages)
                taken[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return taken


def aging_table(num_pages: int) -> Any:
    from exllamav3_adapters.exl3.aging_pagetable import install_aging

    credit = AgingCredit(half_life_seconds=3600.0, hit_cap_pages=64, weight_cap=0.0, max_entries=4 * num_pages)
    return install_aging(make_page_table(num_pages).generator, credit=credit, share=0.03, clock=time.monotonic)


def fill(table: Any) -> Iterator[int]:
    """One half held, then one half that can be evicted: chains on shared heads. Returns unused page names."""
    names = iter(range(10**9))
    for is_held in (True, False):
        hashes: list[bytes] = []
        previous: list[bytes | None] = []
        while len(hashes) < table.max_pages // 2:
            head = _extend(hashes, previous, None, [page_hash(next(names)) for _ in range(_HEAD_PAGES)])
            for _ in range(_CHAINS_PER_HEAD):
                _extend(hashes, previous, head, [page_hash(next(names)) for _ in range(_CHAIN_PAGES)])
        half = table.max_pages // 2
        pages = compute(table, hashes[:half], previous[:half])
        if not is_held:
            table.deallocate_pages(pages)
    return names


def _extend(hashes: list[bytes], previous: list[bytes | None], after: bytes | None, chain: list[bytes]) -> bytes:
    hashes += chain
    previous += [after, *chain[:-1]]
    return chain[-1]


def medians(timings: Timings) -> dict[int, dict[str, float]]:
    return {size: {name: statistics.median(taken) for name, taken in by.items()} for size, by in timings.items()}


def growth(timings: Timings) -> float:
    """How many times longer an allocation takes with `aging_lfu` in the largest table than in the smallest."""
    by_size = medians(timings)
    return by_size[max(by_size)]["aging_lfu"] / by_size[min(by_size)]["aging_lfu"]


def is_met(timings: Timings) -> bool:
    faster = all(by["aging_lfu"] <= by["stock"] for by in medians(timings).values())
    return faster and growth(timings) <= MAX_GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(description="Times an allocation with the stock order and with aging_lfu.")
    parser.add_argument("--allocations", type=int, default=200, help="of each table")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    console = Console()
    with console.status("allocating"):
        timings = measure(SIZES, options.allocations)
    table = Table(title=f"An allocation of {PROMPT_PAGES} new pages: median of {options.allocations}, in µs")
    for heading in ("pages", "stock", "aging_lfu"):
        table.add_column(heading, justify="right")
    for size, by_name in medians(timings).items():
        table.add_row(f"{size:,}", *(f"{1e6 * by_name[name]:,.0f}" for name in ("stock", "aging_lfu")))
    console.print(table)
    console.print(f"aging_lfu, largest to smallest: {growth(timings):.2f} (at most {MAX_GROWTH})")
    if options.json is not None:
        options.json.write_text(json.dumps({"seconds": timings, "growth": growth(timings)}, indent=1))
    return 0 if is_met(timings) else 1


if __name__ == "__main__":
    sys.exit(main())
