"""Loaded into the proxy under test by LITELLM_WORKER_STARTUP_HOOKS: routes that show what no client can see."""

from __future__ import annotations

from typing import Any

import litellm
from litellm.integrations.custom_logger import CustomLogger


class MockRecorder(CustomLogger):
    """Remembers what the mock provider was last asked."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []

    def log_pre_api_call(self, model: str, messages: list[Any], kwargs: dict[str, Any]) -> None:
        self._record(kwargs)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        self._record(kwargs)

    def _record(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("custom_llm_provider") == "openai":
            self.messages = kwargs["messages"]


def add_route() -> None:
    from litellm.proxy.proxy_server import app

    recorder = MockRecorder()
    litellm.callbacks.append(recorder)

    @app.get("/test/stats")
    async def stats() -> dict[str, Any]:
        from litellm_exllamav3.running_gateway import running_gateway

        return await running_gateway().stats()

    @app.get("/test/last_mock_messages")
    async def last_mock_messages() -> list[Any]:
        return recorder.messages
