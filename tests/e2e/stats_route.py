"""Loaded into the proxy under test by LITELLM_WORKER_STARTUP_HOOKS: a route that shows what the plugin counts."""

from __future__ import annotations

from typing import Any


def add_route() -> None:
    from litellm.proxy.proxy_server import app

    @app.get("/test/stats")
    async def stats() -> dict[str, Any]:
        from litellm_exllamav3.running_gateway import running_gateway

        return await running_gateway().stats()
