"""What a request costs in this proxy while nothing else happens: the baseline of the run."""

from __future__ import annotations

import asyncio

from gateway_session import GatewaySession
from report import Figure, Side

SAMPLES = 40
PAUSE_SECONDS = 0.05


async def measure_idle(session: GatewaySession) -> list[Figure]:
    figures = []
    for name, request in (
        ("/health/liveliness, idle", session.liveliness_seconds),
        ("mock provider, idle", session.mock_seconds),
    ):
        side = Side("proxy", [])
        for _ in range(SAMPLES):
            side.samples.append(await request())
            await asyncio.sleep(PAUSE_SECONDS)
        figures.append(Figure(name=name, unit="ms", statistic="median", measured=side))
    return figures
