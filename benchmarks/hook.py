"""Times `Capture.observe`, the part of the pre-call hook that grows with the head: p50 and p99 by head size.

    python benchmarks/hook.py [--calls 1000]

Each call gets a body of its own, freshly parsed, as the hook does. "paced" leaves pauses between calls, so that caches
cool; "beside a busy thread" has another Python thread that never lets go of the GIL on its own. On a machine that does
other work too, the processor's time tells what the call itself costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from litellm_exllamav3.capture import Capture
from litellm_exllamav3.capture_section import CaptureSection
from litellm_exllamav3.head import request_head

MODEL = "smollm2"
WORDS = [
    "the",
    "agent",
    "must",
    "return",
    "path/to/file",
    "größe",
    "naïve",
    "文件",
    "→",
    "“quoted”",
    "🙂",
    "\n",
    "tool",
]


def body_of(num_bytes: int) -> bytes:
    """A chat body of about so many bytes: half system prompt after a nonce line, half tools, a third not ASCII."""
    rng = random.Random(num_bytes)

    def text(size: int) -> str:
        words: list[str] = []
        while size > 0:
            words.append(rng.choice(WORDS))
            size -= len(words[-1].encode()) + 1
        return " ".join(words)

    def tool(number: int) -> dict[str, Any]:
        properties = {f"argument_{index}": {"type": "string", "description": text(120)} for index in range(6)}
        parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
        return {
            "type": "function",
            "function": {"name": f"t{number}", "description": text(700), "parameters": parameters},
        }

    nonce = "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=00000;\n"
    messages = [{"role": "system", "content": nonce + text(num_bytes // 2)}, {"role": "user", "content": "hi"}]
    return orjson.dumps({"messages": messages, "tools": [tool(number) for number in range(num_bytes // 2 // 1850)]})


def call(capture: Capture, raw: bytes) -> tuple[float, float]:
    """Milliseconds by the clock, and of the processor's time."""
    body = orjson.loads(raw)
    begun, cpu_begun = time.perf_counter(), time.thread_time()
    head = request_head(body, "acompletion")
    assert head is not None
    capture.observe(MODEL, head, "key-1")
    return (time.perf_counter() - begun) * 1000, (time.thread_time() - cpu_begun) * 1000


@contextmanager
def busy_thread() -> Iterator[None]:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def timed(capture: Capture, raw: bytes, calls: int, pause_seconds: float) -> list[tuple[float, float]]:
    gc.collect()
    times = []
    for _ in range(calls):
        await asyncio.sleep(pause_seconds)
        times.append(call(capture, raw))
    return times


async def main(calls: int) -> None:
    columns = ("head", "calls", "p50 ms", "p99 ms", "max ms", "p50 cpu ms", "p99 cpu ms")
    table = Table(*columns, title="Capture.observe, request_head included")
    with tempfile.TemporaryDirectory() as folder:
        capture = await Capture.open(Path(folder), {MODEL: CaptureSection()})
        for kilobytes in (4, 30, 120):
            raw = body_of(kilobytes * 1000)

            def row(name: str, times: list[tuple[float, float]], size: int = len(raw)) -> None:
                clock, cpu = (sorted(column) for column in zip(*times, strict=True))
                middle, high = len(times) // 2, int(len(times) * 0.99)
                figures = (clock[middle], clock[high], clock[-1], cpu[middle], cpu[high])
                table.add_row(f"{size / 1000:.0f} kB", name, *(f"{figure:.3f}" for figure in figures))

            row("back to back", await timed(capture, raw, calls, 0))
            row("paced, 5 ms", await timed(capture, raw, calls, 0.005))
            with busy_thread():
                row("beside a busy thread", await timed(capture, raw, calls // 4, 0.001))
        await capture.close()
    Console().print(table)
    Console().print(f"{calls} calls a row, a quarter beside the thread; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    asyncio.run(main(parser.parse_args().calls))
