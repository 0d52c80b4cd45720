"""A head's first use after a restart of the gateway, when replay has brought it back: beside cold and in-memory use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gateway_session import GatewaySession, console, gateway_session, write_config
from prompts import conversation, rules
from report import Bound, Figure, Side

HEAD_TOKENS = (1000, 4000, 7000)
COLD_SAMPLES = 3
ANSWER_TOKENS = 4
MOST_OF_COLD = 0.25
MOST_TIMES_IN_MEMORY = 1.5
LEAST_REUSE = 0.90


@dataclass(frozen=True, slots=True)
class Uses:
    """First tokens of one head's uses. The cold ones are its own and those of heads as long that are used once."""

    head: str
    num_tokens: int
    cold: Side
    in_memory: Side
    replayed: Side

    @classmethod
    def of(cls, num_tokens: int) -> Uses:
        head = rules(f"Restart Nr. {num_tokens}", num_tokens)
        return cls(head, num_tokens, Side("cold", []), Side("hit in memory", []), Side("replayed", []))


async def measure_restart(folder: Path, samples: int, restarts: int) -> list[Figure]:
    """Captures the heads from traffic, then restarts: one first use a head and restart."""
    config = write_config(folder)
    heads = [Uses.of(num_tokens) for num_tokens in HEAD_TOKENS]
    async with gateway_session(config, "restart_0.log") as session:
        await session.settle()
        for uses in heads:
            await _use_before(session, uses, samples)
    for restart in range(1, restarts + 1):
        console.print(f"  restart {restart} of {restarts}")
        async with gateway_session(config, f"restart_{restart}.log") as session:
            await session.wait_for_replay()
            await session.settle()
            for uses in heads:
                answer = await session.chat(conversation(uses.head, 100 + restart), max_tokens=ANSWER_TOKENS)
                if answer.cached_tokens < LEAST_REUSE * uses.num_tokens:
                    raise RuntimeError(f"replay brought back {answer.cached_tokens} tokens of {uses.num_tokens}")
                uses.replayed.samples.append(answer.first_token)
    return [figure for uses in heads for figure in _figures(uses)]


async def _use_before(session: GatewaySession, uses: Uses, samples: int) -> None:
    for number in range(COLD_SAMPLES):
        console.print(f"  head of {uses.num_tokens} tokens, cold: {number + 1} of {COLD_SAMPLES}")
        last = number + 1 == COLD_SAMPLES
        head = uses.head if last else rules(f"Once {number}, {uses.num_tokens}", uses.num_tokens)
        answer = await session.chat(conversation(head, 0), max_tokens=ANSWER_TOKENS)
        uses.cold.samples.append(answer.first_token)
    for number in range(samples):
        answer = await session.chat(conversation(uses.head, number + 1), max_tokens=ANSWER_TOKENS)
        uses.in_memory.samples.append(answer.first_token)


def _figures(uses: Uses) -> list[Figure]:
    cold, in_memory = uses.cold.value("median"), uses.in_memory.value("median")
    bounds = (
        (uses.cold, Bound(rule=f"{MOST_OF_COLD} x cold", value=MOST_OF_COLD * cold)),
        (uses.in_memory, Bound(rule=f"{MOST_TIMES_IN_MEMORY} x in memory", value=MOST_TIMES_IN_MEMORY * in_memory)),
    )
    return [
        Figure(
            name=f"first use of a head of {uses.num_tokens} tokens after a restart",
            unit="ms",
            statistic="median",
            measured=uses.replayed,
            against=against,
            bound=bound,
        )
        for against, bound in bounds
    ]
