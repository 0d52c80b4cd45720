"""The demo model behind a real proxy: chats with it, their tokens, and what a test waits for."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import openai
from proxy_process import Proxy
from tokenizers import Tokenizer

from exllamav3_adapters.demo_model import demo_model_folder

READY_SECONDS = 180.0
REPLAY_SECONDS = 240.0
CHUNK_TOKENS = 256
COUNT = "Count from one to ten."
WORDS = """
amber anchor apple autumn basket bridge bronze butter candle canyon carpet castle cedar cherry circle copper
cotton desert dragon eagle ember engine fabric falcon feather forest garden glacier granite harbor hollow
island ivory jacket jungle kettle ladder lantern lemon marble meadow mirror mountain needle ocean orange
orchard paper pepper pillow planet pocket river saddle silver spider spring summer table thunder timber valley
velvet winter
"""


def local(**fields: Any) -> dict[str, Any]:
    """The demo model's section, in chunks of one page so that a chunk is short; `fields` replace whole keys."""
    return {
        "engine": "cpu",
        "model": {"model_dir": "demo", "max_seq_len": 8192, "cache_size": 16384, "chunk_size": CHUNK_TOKENS},
        "capture": {"min_conversations": 2, "min_tokens": 64, "flush_seconds": 0.1},
        **fields,
    }


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))


def token_ids(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def rendered_head(head: str) -> str:
    return f"<|im_start|>system\n{head}<|im_end|>\n"


def rendered(head: str, question: str) -> str:
    """The prompt as the demo model's template makes it."""
    return f"{rendered_head(head)}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def new_head(num_tokens: int) -> str:
    """A system prompt of about that many tokens that no other test has, nor any dozen of words in a row of it."""
    words = random.Random(secrets.randbits(64))
    head = f"Agent {secrets.token_hex(4)} is kind."
    rules = 0
    while (missing := num_tokens - len(token_ids(head))) > 0:
        for _ in range(missing // 20 + 1):
            rules += 1
            head += f" Rule {rules}: {' '.join(words.choices(WORDS.split(), k=12))}."
    return head


@dataclass(frozen=True, kw_only=True)
class Answer:
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    began: float
    """Monotonic seconds, like the next two."""
    first_text: float
    """When the first piece of text came; at the end of an answer that comes whole."""
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def usage(self) -> tuple[int, int, int]:
        return self.prompt_tokens, self.cached_tokens, self.completion_tokens


class Chats:
    """A client of one proxy, with the model `local`, and of one event loop."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.client = openai.AsyncOpenAI(
            base_url=f"{proxy.base_url}/v1", api_key=proxy.master_key, max_retries=0, timeout=300
        )

    async def ask(self, head: str, question: str = COUNT, *, stream: bool = False, **fields: Any) -> Answer:
        """Greedy and of at most 16 tokens unless `fields` say otherwise; a field of None is not sent at all."""
        body: dict[str, Any] = {"max_tokens": 16, "temperature": 0, **fields}
        body = {name: value for name, value in body.items() if value is not None}
        messages = [{"role": "system", "content": head}, {"role": "user", "content": question}]
        if stream:
            return await self._streamed(model="local", messages=messages, **body)
        began = time.monotonic()
        answer = await self.client.chat.completions.create(model="local", messages=messages, **body)
        (choice,) = answer.choices
        return _answer(choice.message.content, choice.finish_reason, answer.usage, began, time.monotonic())

    async def _streamed(self, **body: Any) -> Answer:
        began = time.monotonic()
        first_text, text, finish_reason, usage = 0.0, "", "", None
        stream = await self.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **body)
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish_reason = choice.finish_reason or finish_reason
                first_text = first_text or (time.monotonic() if text else 0.0)
        return _answer(text, finish_reason, usage, began, first_text or time.monotonic())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def mock(self) -> float:
        """Asks the mock provider. Returns the seconds it took."""
        began = time.monotonic()
        await self.client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "hi"}])
        return time.monotonic() - began

    async def stats(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.proxy.stats, "local")

    async def until(self, holds: Callable[[dict[str, Any]], bool], seconds: float, what: str) -> float:
        """Waits until it holds of the model's stats, with the engine's among them. Returns the seconds that took."""

        def found() -> bool:
            stats = self.proxy.stats("local")
            return stats["engine"] is not None and holds(stats)

        return await asyncio.to_thread(self.proxy.wait_until, found, seconds, what)

    async def ready(self) -> None:
        await self.until(lambda stats: stats["state"] == "ready", READY_SECONDS, "the model to be ready")

    async def replayed(self) -> dict[str, Any]:
        """Waits for the replay. Returns its stats."""
        await self.until(
            lambda stats: (stats["replay"] or {}).get("state") == "done", REPLAY_SECONDS, "the replay to be done"
        )
        replay: dict[str, Any] = (await self.stats())["replay"]
        return replay

    async def replaying(self, num_tokens: int) -> None:
        """Waits until a replay has done that many tokens and has more to do."""
        await self.until(
            lambda stats: stats["replay"]["state"] == "prefilling" and stats["replay"]["tokens_done"] >= num_tokens,
            READY_SECONDS,
            "a replay to be under way",
        )

    async def prefilling(self) -> None:
        """Waits until a request is in the engine and holds pages."""
        await self.until(
            lambda stats: stats["engine"]["active_requests"] > 0 and stats["engine"]["cache_tokens_used"] > 0,
            60,
            "a request to be in the engine",
        )

    async def idle(self, seconds: float = 60) -> float:
        """Waits until no request has anything of the engine's. Returns the seconds that took."""
        return await self.until(is_idle, seconds, "the engine to be idle")

    async def chunk_seconds(self) -> float:
        """What one chunk of a prompt takes at this moment, from a prompt of four that nobody else has."""
        answer = await self.ask(new_head(4 * CHUNK_TOKENS), max_tokens=1)
        return answer.seconds / (answer.prompt_tokens / CHUNK_TOKENS)


def is_idle(stats: Mapping[str, Any]) -> bool:
    engine = stats["engine"]
    return not any(
        (
            stats["requests_waiting"],
            stats["requests_active"],
            engine["active_requests"],
            engine["queued_requests"],
            engine["cache_tokens_used"],
        )
    )


async def settled(proxy: Proxy) -> None:
    """Past LiteLLM's first request and the model's first, which are slow whatever they are."""
    await asyncio.to_thread(proxy.warm_up)
    async with Chats(proxy) as chats:
        await chats.ready()
        await chats.ask("Be brief.", "Say hello.", max_tokens=2)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Has the client leave in the middle of its request."""
    task.cancel()
    await asyncio.wait([task])


def token_traces(haystack: bytes, ids: Sequence[int]) -> float:
    """How much of the token ids is there, from 0 to 1, as 8-byte little-endian integers: the disk tier's form.

    Looks for a dozen in a row at every second dozen, so that no page of 256 escapes.
    """
    runs = [ids[start : start + 12] for start in range(0, len(ids) - 11, 24)]
    return sum(b"".join(token.to_bytes(8, "little") for token in run) in haystack for run in runs) / len(runs)


def text_traces(haystack: bytes, text: str) -> float:
    """How much of the text is there, from 0 to 1, by 30 characters of every 100."""
    pieces = [text[start : start + 30].encode() for start in range(0, len(text) - 29, 100)]
    return sum(piece in haystack for piece in pieces) / len(pieces)


def _answer(text: str | None, finish_reason: str, usage: Any, began: float, first_text: float) -> Answer:
    return Answer(
        text=text or "",
        finish_reason=finish_reason,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        completion_tokens=usage.completion_tokens,
        began=began,
        first_text=first_text,
        ended=time.monotonic(),
    )
