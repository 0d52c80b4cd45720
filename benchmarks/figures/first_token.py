"""Time to first token through the proxy, beside the engine's own loop: warm (bounded) and cold (for information)."""

from __future__ import annotations

from engine_loop import EngineLoopClient
from gateway_session import GatewaySession, console
from prompts import conversation, rules
from report import Bound, Figure, Side

HEAD_TOKENS = 2700
COLD_SAMPLES = 3
ANSWER_TOKENS = 4
MOST_TIMES_THE_LOOP = 1.5
MOST_SECONDS_ON_TOP = 0.060


async def measure_first_token(session: GatewaySession, loop: EngineLoopClient, samples: int) -> list[Figure]:
    """Proxy and loop take turns, with the same chats in the same order, so what is cached is the same for both."""
    cold = Side("proxy", []), Side("engine's loop", [])
    warm = Side("proxy", []), Side("engine's loop", [])
    console.print(f"  cold, {COLD_SAMPLES} heads")
    for number in range(COLD_SAMPLES):
        head = rules(f"First Token Nr. {number}", HEAD_TOKENS)
        await _take_turns(session, loop, head, 0, cold)
    console.print(f"  warm, {samples} conversations")
    for number in range(samples + 1):  # the first one settles
        await _take_turns(session, loop, head, number + 1, warm if number else None)
    proxy, alone = warm
    bound = Bound(
        rule=f"{MOST_TIMES_THE_LOOP} x the loop's + {MOST_SECONDS_ON_TOP * 1000:.0f} ms",
        value=MOST_TIMES_THE_LOOP * alone.value("median") + MOST_SECONDS_ON_TOP,
    )
    return [
        Figure(
            name=f"time to first token, head of {HEAD_TOKENS} tokens warm",
            unit="ms",
            statistic="median",
            measured=proxy,
            against=alone,
            bound=bound,
        ),
        Figure(name="the same, cold", unit="s", statistic="median", measured=cold[0], against=cold[1]),
    ]


async def _take_turns(
    session: GatewaySession, loop: EngineLoopClient, head: str, question: int, sides: tuple[Side, Side] | None
) -> None:
    chat = conversation(head, question)
    proxy = await session.chat(chat, max_tokens=ANSWER_TOKENS)
    alone = (await loop.run(chat, max_tokens=ANSWER_TOKENS)).answers[0]
    work = [(answer.prompt_tokens, answer.cached_tokens) for answer in (proxy, alone)]
    if work[0] != work[1]:
        raise RuntimeError(f"not the same work: (prompt, cached tokens) is {work[0]} in the proxy, {work[1]} alone")
    if sides is not None:
        for side, answer in zip(sides, (proxy, alone), strict=True):
            side.samples.append(answer.first_token)
