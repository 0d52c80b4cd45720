"""A proxy under measurement: started on a config of its own, settled, and asked by real clients."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import yaml
from answer import Answer
from openai import AsyncOpenAI
from prompts import Messages, short_chat
from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from gateway_process import GatewayProcess, running_gateway

from exllamav3_adapters.engine_settings import EngineSettings
from litellm_exllamav3.config_file import load_settings

CONFIG = Path(__file__).resolve().parent.parent / "litellm_config.yaml"
MODEL_KEY = "smollm2"
REPLAY_SECONDS = 600.0
SETTLING_CHAT = short_chat("Say hello.")
SETTLING_TOKENS = 4

console = Console(highlight=False)
if not console.is_terminal:
    console.width = 140  # as a table in a log needs


def write_config(folder: Path, *, cache_size: int | None = None, memory: dict[str, Any] | None = None) -> Path:
    """The repository's own config with its state under `folder`."""
    config = yaml.safe_load(CONFIG.read_text())
    model = config["exllamav3_settings"]["models"][MODEL_KEY]
    if cache_size is not None:
        model["model"]["cache_size"] = cache_size
    if memory is not None:
        model["memory"] = memory
    path = folder / "litellm_config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def engine_settings(config: Path) -> EngineSettings:
    """What the gateway tells its engine."""
    environ = {"LITELLM_MASTER_KEY": "sk-unused"}
    return load_settings(config, environ).models[MODEL_KEY].engine_settings(MODEL_KEY)


class GatewaySession:
    """Clients of one running proxy."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._openai = AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.master_key, timeout=600, max_retries=0)
        self._http = httpx.AsyncClient(base_url=gateway.base_url, timeout=60)

    async def aclose(self) -> None:
        await self._openai.close()
        await self._http.aclose()

    async def chat(
        self, messages: Messages, *, max_tokens: int, min_tokens: int = 0, first_token: asyncio.Event | None = None
    ) -> Answer:
        """One streamed answer of the model, greedy. Sets `first_token` when that arrives."""
        began = time.perf_counter()
        first = last = 0.0
        usage = None
        stream = await self._openai.chat.completions.create(
            model="local",
            messages=cast(Any, messages),
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"min_tokens": min_tokens},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                last = time.perf_counter() - began
                first = first or last
                if first_token is not None:
                    first_token.set()
            usage = chunk.usage or usage
        assert first, "the model answered with no text"
        assert usage is not None, "the stream carried no usage"
        details = usage.prompt_tokens_details
        return Answer(
            first_token=first,
            last_token=last,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=(details.cached_tokens if details else 0) or 0,
            completion_tokens=usage.completion_tokens,
        )

    async def mock_seconds(self) -> float:
        """One request to the mock provider."""
        began = time.perf_counter()
        await self._openai.chat.completions.create(model="mock", messages=[{"role": "user", "content": "Hello"}])
        return time.perf_counter() - began

    async def liveliness_seconds(self) -> float:
        began = time.perf_counter()
        response = await self._http.get("/health/liveliness")
        response.raise_for_status()
        return time.perf_counter() - began

    async def settle(self) -> None:
        """A process's first request is slow in LiteLLM, whatever it is, and so is a model's first: send both."""
        await self.mock_seconds()
        await self.chat(SETTLING_CHAT, max_tokens=SETTLING_TOKENS)
        console.print("  settled: one request to the mock provider and one short one to the model, not measured")

    @property
    def replay_is_done(self) -> bool:
        return "replay done" in self._gateway.log_path.read_text(errors="replace")

    async def wait_for_replay(self) -> None:
        line = await asyncio.to_thread(self._gateway.wait_for_log, "replay done", REPLAY_SECONDS)
        console.print(f"  {line[line.index('replay done') :]}")


@asynccontextmanager
async def gateway_session(config: Path, log_name: str) -> AsyncIterator[GatewaySession]:
    """The proxy runs for as long as the block does, and logs to this file beside the config."""
    with running_gateway(config, config.parent / log_name) as gateway:
        session = GatewaySession(gateway)
        try:
            yield session
        finally:
            await session.aclose()
