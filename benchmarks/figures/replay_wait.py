"""The wait of a short request that meets a running replay: at most one chunk longer than without."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from gateway_session import console, engine_settings, gateway_session, write_config
from prompts import rules, short_chat
from report import Bound, Figure, Side

PREFIXES = 4
PREFIX_TOKENS = 6900
CACHE_TOKENS = 32768
COLD_SAMPLES = 3
PAUSE_SECONDS = (0.5, 1.5)
"""Between two requests, drawn anew each time so that they meet a chunk anywhere. Replay computes meanwhile."""


async def measure_replay_wait(folder: Path, samples: int) -> list[Figure]:
    """The replay is that of configured prompts, long enough to be met so often; without it: the same process after."""
    heads = [rules(f"Replay Nr. {number}", PREFIX_TOKENS) for number in range(PREFIXES)]
    memory = {"warm_prompts": [{"messages": [{"role": "system", "content": head}]} for head in heads]}
    config = write_config(folder, cache_size=CACHE_TOKENS, memory=memory)
    chunk_size = engine_settings(config).model.chunk_size
    pauses = random.Random(1)
    meeting, without = Side("during replay", []), Side("without", [])
    chunk_seconds: list[float] = []
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
        for number in range(COLD_SAMPLES):
            console.print(f"  cold prompts of {PREFIX_TOKENS} tokens, for a chunk's time: {number + 1}")
            cold = await session.chat(short_chat(rules(f"Chunk Nr. {number}", PREFIX_TOKENS)), max_tokens=1)
            chunk_seconds.append(cold.first_token / -(-cold.prompt_tokens // chunk_size))
    chunk = Side("one chunk", chunk_seconds)
    limit = without.value("median") + chunk.value("median")
    name = "time to first token of a short request"
    return [
        Figure(
            name=name,
            unit="ms",
            statistic="median",
            measured=meeting,
            against=without,
            bound=Bound(rule="without + one chunk", value=limit),
        ),
        Figure(name=name, unit="ms", statistic="max", measured=meeting, against=without),
        Figure(
            name=f"a chunk of {chunk_size} tokens, cold, mean over {PREFIX_TOKENS} tokens",
            unit="ms",
            statistic="median",
            measured=chunk,
        ),
    ]
