"""Times the pre-call hook, as LiteLLM's proxy calls it, next to a hook that does nothing.

    python benchmarks/hook.py [--engine cpu] [--calls 1000]

The body holds a head of 120 kB: half of it a system prompt after a nonce line, half tools, a third of all not ASCII.
Each call gets a body of its own, freshly parsed, as in the proxy. The two hooks take turns in blocks, with pauses
before each call so that caches cool. "decoding" has the model answer another request meanwhile. The second table times
`Capture.observe` alone, the part that grows with the head. On a machine that does other work too, the processor's time
tells what the call itself costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import orjson
import yaml
from litellm.caching.caching import DualCache
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy import proxy_server
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.utils import ProxyLogging
from litellm.utils import custom_llm_setup
from rich.console import Console
from rich.table import Table

from exllamav3_adapters.contract import Chat, GenerationParams
from litellm_exllamav3 import hooks, running_gateway
from litellm_exllamav3.capture import Capture
from litellm_exllamav3.capture_section import CaptureSection
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.head import request_head
from litellm_exllamav3.provider import handler
from litellm_exllamav3.served_model import ServedModel

MODEL = "smollm2"
ALIAS = "local"
BLOCK = 50
PAUSE_SECONDS = 0.005
WORDS = [
    "the",
    "agent",
    "must",
    "return",
    "path/to/file",
    "größe",
    "naïve",
    "文件",
    "→",
    "“quoted”",
    "🙂",
    "\n",
    "tool",
]

Times = list[tuple[float, float]]
"""Milliseconds by the clock, and of the processor's time of this thread, a call."""


class NothingHook(CustomLogger):  # type: ignore[misc]  # litellm has no types for us
    """What every hook costs."""

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: Any) -> None:
        return None


def body_of(num_bytes: int) -> bytes:
    """A chat body of about so many bytes."""
    rng = random.Random(num_bytes)

    def text(size: int) -> str:
        words: list[str] = []
        while size > 0:
            words.append(rng.choice(WORDS))
            size -= len(words[-1].encode()) + 1
        return " ".join(words)

    def tool(number: int) -> dict[str, Any]:
        properties = {f"argument_{index}": {"type": "string", "description": text(120)} for index in range(6)}
        parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
        return {
            "type": "function",
            "function": {"name": f"t{number}", "description": text(700), "parameters": parameters},
        }

    nonce = "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=00000;\n"
    messages = [{"role": "system", "content": nonce + text(num_bytes // 2)}, {"role": "user", "content": "hi"}]
    tools = [tool(number) for number in range(num_bytes // 2 // 1850)]
    return orjson.dumps({"model": ALIAS, "messages": messages, "tools": tools})


async def time_hooks(raw: bytes, calls: int) -> tuple[Times, Times]:
    """Of the hook that does nothing, and of ours."""
    logging, user = ProxyLogging(user_api_key_cache=DualCache()), UserAPIKeyAuth(api_key="key-1")
    times: tuple[Times, Times] = ([], [])

    async def call() -> None:
        await logging.pre_call_hook(user_api_key_dict=user, data=body, call_type="acompletion")

    for _ in range(calls // BLOCK):
        for hook, found in zip((NothingHook(), hooks.capture), times, strict=True):
            litellm.callbacks = [hook]
            body = orjson.loads(raw)
            await call()  # LiteLLM looks at new callbacks once
            for _ in range(BLOCK):
                await asyncio.sleep(PAUSE_SECONDS)
                body = orjson.loads(raw)  # the proxy has parsed it just before
                found.append(await timed(call))
    return times


async def timed(call: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    begun, cpu_begun = time.perf_counter(), time.thread_time()
    await call()
    return (time.perf_counter() - begun) * 1000, (time.thread_time() - cpu_begun) * 1000


@asynccontextmanager
async def serving(engine: str, folder: Path) -> AsyncIterator[ServedModel]:
    """A gateway with the model loaded, and a router where the proxy keeps its own."""
    model_list = [{"model_name": ALIAS, "litellm_params": {"model": f"exllamav3/{MODEL}"}}]
    provider = {"provider": "exllamav3", "custom_handler": handler}
    litellm.custom_provider_map = [provider]
    custom_llm_setup()
    proxy_server.llm_router = litellm.Router(model_list=model_list)
    settings = {
        "model_list": model_list,
        "litellm_settings": {
            "custom_provider_map": [{**provider, "custom_handler": "litellm_exllamav3.provider.handler"}],
            "callbacks": ["litellm_exllamav3.hooks.capture"],
        },
        "general_settings": {"cancel_on_disconnect": True},
        "exllamav3_settings": {"models": {MODEL: {"engine": engine, "model": {"model_dir": "demo"}}}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    gateway = Gateway.open(path, os.environ)
    running_gateway.start(gateway)
    model = running_gateway.served_model(gateway, MODEL)
    try:
        await model.engine(asyncio.get_running_loop().time() + 300)
        yield model
    finally:
        await gateway.stop()


@asynccontextmanager
async def decoding(model: ServedModel) -> AsyncIterator[None]:
    """The model answers one request after another."""
    chat = Chat(messages=[{"role": "user", "content": f"Tell a long story.\nsay: {'word ' * 1000}"}])

    async def answer() -> None:
        while True:
            async with model.admit() as request:
                async for _ in await request.open_stream(await request.render(chat), GenerationParams(max_tokens=1000)):
                    pass

    task = asyncio.create_task(answer())
    await asyncio.sleep(2)
    try:
        assert not task.done()
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def time_observe(capture: Capture, raw: bytes, calls: int, pause_seconds: float) -> Times:
    async def call() -> None:
        head = request_head(body, "acompletion")
        assert head is not None
        capture.observe(MODEL, head, "key-1")

    gc.collect()
    times = []
    for _ in range(calls):
        body = orjson.loads(raw)
        await asyncio.sleep(pause_seconds)
        times.append(await timed(call))
    return times


@contextmanager
def busy_thread() -> Iterator[None]:
    """Another Python thread that never lets go of the GIL on its own."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def figures(times: Times) -> list[str]:
    clock, cpu = (sorted(column) for column in zip(*times, strict=True))
    middle, high = len(times) // 2, int(len(times) * 0.99)
    return [f"{figure:.3f}" for figure in (clock[middle], clock[high], clock[-1], cpu[middle], cpu[high])]


async def main(engine: str, calls: int) -> None:
    columns = ("p50 ms", "p99 ms", "max ms", "p50 cpu ms", "p99 cpu ms")
    raw = body_of(120_000)
    hook_table = Table(
        "hook", "engine", *columns, title=f"ProxyLogging.pre_call_hook, head of {len(raw) / 1000:.0f} kB"
    )
    with tempfile.TemporaryDirectory() as folder:
        async with serving(engine, Path(folder)) as model:
            idle = await time_hooks(raw, calls)
            async with decoding(model):
                busy = await time_hooks(raw, calls)
        for state, (nothing, ours) in (("idle", idle), ("decoding", busy)):
            hook_table.add_row("does nothing", state, *figures(nothing))
            hook_table.add_row("capture", state, *figures(ours))

        observe_table = Table("head", "calls", *columns, title="Capture.observe, request_head included")
        capture = await Capture.open(Path(folder) / "observe", {MODEL: CaptureSection()})
        for kilobytes in (4, 30, 120):
            raw = body_of(kilobytes * 1000)
            size = f"{len(raw) / 1000:.0f} kB"
            observe_table.add_row(size, "back to back", *figures(await time_observe(capture, raw, calls, 0)))
            observe_table.add_row(size, "paced", *figures(await time_observe(capture, raw, calls, PAUSE_SECONDS)))
            with busy_thread():
                times = await time_observe(capture, raw, calls // 4, 0.001)
            observe_table.add_row(size, "beside a busy thread", *figures(times))
        await capture.close()
    console = Console()
    console.print(hook_table, observe_table)
    load = os.getloadavg()[0]
    console.print(f"engine {engine}; {calls} calls a row, a quarter beside the thread; load average {load:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="cpu", choices=["cpu", "fake"])
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.engine, arguments.calls))
