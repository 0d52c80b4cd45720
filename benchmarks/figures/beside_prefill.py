"""What the proxy's other clients notice of a long prefill: `/health/liveliness` and a mock provider beside one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field

from gateway_session import GatewaySession, console
from prompts import Messages, rules, short_chat
from report import Bound, Figure, Side, Statistic

PROMPT_TOKENS = 6000
BEGIN_SECONDS = 0.5
"""After sending the long prompt; by then it is rendered and its first chunk runs."""
MOST_LIVELINESS_SECONDS = 0.025
MOST_TIMES_QUIET = 3.0
MOST_TIMES_QUIET_MOCK = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A request that is sent so many times, one each interval, whether or not the one before is answered."""

    name: str
    request: Callable[[], Coroutine[None, None, float]]
    samples: int
    interval: float
    sent: list[asyncio.Task[float]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.sent) == self.samples

    async def send(self, until: asyncio.Event) -> None:
        """Returns when enough are sent or it is time to stop."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in itertools.count():
            await asyncio.sleep(began + number * self.interval - loop.time())
            if until.is_set() or self.complete:
                return
            self.sent.append(loop.create_task(self.request()))

    async def side(self, name: str) -> Side:
        return Side(name, await asyncio.gather(*self.sent))


async def measure_beside_prefill(session: GatewaySession) -> list[Figure]:
    """Quiet and beside a prefill: as many samples, at the same pace, from the same client."""
    prompts = (short_chat(rules(f"Prefill Nr. {number}", PROMPT_TOKENS)) for number in itertools.count())
    liveliness = await _both_sides(
        session,
        lambda: Probe(name="liveliness", request=session.liveliness_seconds, samples=400, interval=0.050),
        prompts,
    )
    mock = await _both_sides(
        session, lambda: Probe(name="mock provider", request=session.mock_seconds, samples=40, interval=0.100), prompts
    )
    name = f"/health/liveliness beside a prefill of {PROMPT_TOKENS} tokens"
    return [
        _figure(name, "p99", liveliness, Bound(rule="fixed", value=MOST_LIVELINESS_SECONDS)),
        _figure(name, "p99", liveliness, times_quiet=MOST_TIMES_QUIET),
        _figure(name, "median", liveliness),
        _figure("mock provider beside such a prefill", "median", mock, times_quiet=MOST_TIMES_QUIET_MOCK),
    ]


async def _both_sides(
    session: GatewaySession, make_probe: Callable[[], Probe], prompts: Iterator[Messages]
) -> tuple[Side, Side]:
    quiet, beside = make_probe(), make_probe()
    console.print(f"  {quiet.name}: {quiet.samples} requests, one each {quiet.interval * 1000:.0f} ms, quiet")
    await quiet.send(until=asyncio.Event())
    quiet_side = await quiet.side("quiet")
    while not beside.complete:
        console.print(f"  {beside.name}: beside a prefill, {len(beside.sent)} of {beside.samples} so far")
        first_token = asyncio.Event()
        prefill = asyncio.create_task(session.chat(next(prompts), max_tokens=1, first_token=first_token))
        await asyncio.sleep(BEGIN_SECONDS)
        await beside.send(until=first_token)
        await prefill
    return await beside.side("beside a prefill"), quiet_side


def _figure(
    name: str,
    statistic: Statistic,
    sides: tuple[Side, Side],
    bound: Bound | None = None,
    *,
    times_quiet: float | None = None,
) -> Figure:
    beside, quiet = sides
    if times_quiet is not None:
        bound = Bound(rule=f"{times_quiet:g} x the quiet one", value=times_quiet * quiet.value(statistic))
    return Figure(name=name, unit="ms", statistic=statistic, measured=beside, against=quiet, bound=bound)
