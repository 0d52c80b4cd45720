"""How the gateway gets its engines: each in a process of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from exllamav3_adapters.connection import ConnectionBroken
from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import EngineDied, LoadFailed
from exllamav3_adapters.hosted import HostedEngine

EngineLoader: TypeAlias = Callable[[str, EngineSettings, Callable[[LoadProgress], None]], Awaitable[Engine]]
"""Loads the engine of that name; reports on the loop. Raises `LoadFailed` where another try is useless."""


async def load_hosted(name: str, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
    """In a child process. Raises `LoadFailed`, and `EngineDied` where the process ended without saying why."""
    try:
        return await HostedEngine.load(name, settings, report)
    except LoadFailed as error:
        if isinstance(error.__cause__, ConnectionBroken):
            raise EngineDied(error.message) from error
        raise
