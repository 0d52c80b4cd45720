"""Tokens a second through the proxy, beside the engine's own loop: one stream (bounded) and four (for information)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from answer import Answer
from engine_loop import EngineLoopClient
from gateway_session import GatewaySession, console
from prompts import short_chat
from report import Bound, Figure, Side

ANSWER_TOKENS = 129  # 128 after the first one
STREAMS = 4
STREAM_ROUNDS = 3
LEAST_OF_THE_LOOP = 0.85


async def measure_decode(session: GatewaySession, loop: EngineLoopClient, samples: int) -> list[Figure]:
    single = await _rates(session, loop, samples, streams=1)
    several = await _rates(session, loop, STREAM_ROUNDS, streams=STREAMS)
    proxy, alone = single
    return [
        Figure(
            name=f"decode rate, one stream, {ANSWER_TOKENS - 1} tokens",
            unit="tokens/s",
            statistic="median",
            measured=proxy,
            against=alone,
            bound=Bound(
                rule=f"{LEAST_OF_THE_LOOP} x the loop's",
                value=LEAST_OF_THE_LOOP * alone.value("median"),
                at_least=True,
            ),
        ),
        Figure(
            name=f"decode rate, {STREAMS} streams together",
            unit="tokens/s",
            statistic="median",
            measured=several[0],
            against=several[1],
        ),
    ]


async def _rates(session: GatewaySession, loop: EngineLoopClient, samples: int, *, streams: int) -> tuple[Side, Side]:
    proxy, alone = Side("proxy", []), Side("engine's loop", [])
    console.print(f"  {streams} at once, {samples} rounds each")
    for sample in range(samples):
        chats = [short_chat(f"Tell a long story about house number {sample} in street {n}.") for n in range(streams)]
        answers = await asyncio.gather(
            *(session.chat(chat, max_tokens=ANSWER_TOKENS, min_tokens=ANSWER_TOKENS) for chat in chats)
        )
        proxy.samples.append(_rate(answers))
        run = await loop.run(*chats, max_tokens=ANSWER_TOKENS, min_tokens=ANSWER_TOKENS)
        alone.samples.append(_rate(run.answers))
    return proxy, alone


def _rate(answers: Sequence[Answer]) -> float:
    """Of all the streams together: their tokens after the first one, from the first one of any to the last of all."""
    tokens = sum(answer.completion_tokens - 1 for answer in answers)
    begin = min(answer.first_token for answer in answers)
    return tokens / (max(answer.last_token for answer in answers) - begin)
