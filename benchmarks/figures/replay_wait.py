"""The wait of a short request that meets a running replay: at most one chunk longer than without.

The later a chunk is in its prompt, the longer it takes, so the median wait is held against the median chunk and the
longest wait against the longest one.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from engine_loop import engine_loop
from gateway_session import SETTLING_CHAT, SETTLING_TOKENS, console, engine_settings, gateway_session, write_config
from prompts import rules, short_chat
from report import Bound, Figure, Side, Statistic

from exllamav3_adapters.engine_settings import EngineSettings

PREFIXES = 4
PREFIX_TOKENS = 6900
CACHE_TOKENS = 32768
COLD_SAMPLES = 3
STATISTICS: tuple[Statistic, ...] = ("median", "max")
PAUSE_SECONDS = (0.5, 1.5)
"""Between two requests, drawn anew each time so that they meet a chunk anywhere. Replay computes meanwhile."""


async def measure_replay_wait(folder: Path, samples: int) -> list[Figure]:
    """The replay is that of configured prompts, long enough to be met so often; without it: the same process after."""
    heads = [rules(f"Replay Nr. {number}", PREFIX_TOKENS) for number in range(PREFIXES)]
    memory = {"warm_prompts": [{"messages": [{"role": "system", "content": head}]} for head in heads]}
    config = write_config(folder, cache_size=CACHE_TOKENS, memory=memory)
    pauses = random.Random(1)
    meeting, without = Side("during replay", []), Side("without", [])
    async with gateway_session(config, "replay_wait.log") as session:
        await session.settle()
        for number in range(samples):
            await asyncio.sleep(pauses.uniform(*PAUSE_SECONDS))
            if session.replay_is_done:
                break
            answer = await session.chat(short_chat(f"Hello, this is number {number}."), max_tokens=1)
            meeting.samples.append(answer.first_token)
        console.print(f"  {len(meeting.samples)} short requests have met the replay")
        await session.wait_for_replay()
        for number in range(samples):
            await asyncio.sleep(pauses.uniform(*PAUSE_SECONDS) / 5)
            answer = await session.chat(short_chat(f"Hello, number {number} is this."), max_tokens=1)
            without.samples.append(answer.first_token)
        chunks = Side("one chunk", await _chunk_seconds(engine_settings(config)))
    name = "time to first token of a short request"
    figures = [
        Figure(
            name=name,
            unit="ms",
            statistic=statistic,
            measured=meeting,
            against=without,
            bound=Bound(
                rule=f"without + a chunk, {statistic}", value=without.value(statistic) + chunks.value(statistic)
            ),
        )
        for statistic in STATISTICS
    ]
    for statistic in STATISTICS:
        name = f"a chunk of a prompt of {PREFIX_TOKENS} tokens, engine's loop"
        figures.append(Figure(name=name, unit="ms", statistic=statistic, measured=chunks))
    return figures


async def _chunk_seconds(settings: EngineSettings) -> list[float]:
    """Each chunk of a few cold prompts as long as the replayed ones, while the proxy is idle."""
    console.print(f"  the chunks of {COLD_SAMPLES} cold prompts of {PREFIX_TOKENS} tokens")
    async with engine_loop(settings) as loop:
        await loop.run(SETTLING_CHAT, max_tokens=SETTLING_TOKENS)
        runs = [
            await loop.run(short_chat(rules(f"Chunk Nr. {number}", PREFIX_TOKENS)), max_tokens=1)
            for number in range(COLD_SAMPLES)
        ]
    return [seconds for run in runs for seconds in run.prefill_steps]
