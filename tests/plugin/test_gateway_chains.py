"""The engine's own prefixes over a gateway's life: kept, replayed, forgotten. A token of the fake engine is a byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.contract import (
    Chat,
    Engine,
    Finished,
    GenerationParams,
    Head,
    LoadProgress,
    Prompt,
    StoredPrefix,
)
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import EngineDied
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3.capture import Capture
from litellm_exllamav3.forgetting import Forgotten
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.head import request_head
from litellm_exllamav3.packed_tokens import pack_tokens
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.settings import Settings

AGING = {"aging_lfu": True, "aging_capture_prefixes": True}
SYSTEM = "You are a careful clerk with many rules to follow. " * 30
OTHER = "An unrelated gardener waters the roses at dawn. " * 30


class UsersFirst(FakeEngine):
    """A model whose template has the user's words before all else."""

    async def render_head(self, head: Head) -> Prompt:
        return Prompt(token_ids=())


class Engines:
    """Loads fake engines in process and remembers them."""

    def __init__(self, seconds_per_page: float = 0.0, kind: type[FakeEngine] = FakeEngine) -> None:
        self.loaded: list[FakeEngine] = []
        self._kind = kind
        self._seconds_per_page = seconds_per_page

    async def __call__(self, name: str, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        self.loaded.append(self._kind(settings, seconds_per_prefill_page=self._seconds_per_page))
        return self.loaded[-1]


class Proxies:
    """Gateways over one state folder, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gateways: list[Gateway] = []

    async def open(
        self, engines: Engines | None = None, memory: dict[str, Any] | None = None, **options: Any
    ) -> Gateway:
        model = {"engine": "fake", "model": {"model_dir": "demo", "max_seq_len": 8192}, "memory": memory or AGING}
        raw = {"models": {"m": {**model, **options}}}
        settings = Settings.model_validate(raw, context={"base_dir": self.folder})
        gateway = Gateway(settings, load_engine=engines or Engines())
        self.gateways.append(gateway)
        gateway.start()
        await until(lambda: gateway.capture and served(gateway).state in ("ready", "lazy"))
        return gateway

    def bytes_on_disk(self) -> bytes:
        return b"".join(path.read_bytes() for path in (self.folder / "state").rglob("*") if path.is_file())


@pytest.fixture
async def proxies(tmp_path: Path) -> AsyncIterator[Proxies]:
    proxies = Proxies(tmp_path)
    yield proxies
    for gateway in proxies.gateways:
        await gateway.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the gateway has a state, not an event
            await asyncio.sleep(0.002)


def served(gateway: Gateway) -> ServedModel:
    model = gateway.model("m")
    assert model is not None
    return model


def captured(gateway: Gateway) -> Capture:
    assert gateway.capture is not None
    return gateway.capture


async def ask(gateway: Gateway, system: str, words: str, *, retain: bool = True) -> int:
    """How many tokens of the prompt were cached."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"say: {words}"}]
    async with served(gateway).admit() as request:
        prompt = await request.render(Chat(messages=messages))
        stream = await request.open_stream(prompt, GenerationParams(temperature=0.0), retain=retain)
        events = [event async for event in stream]
    assert isinstance(events[-1], Finished)
    return events[-1].cached_tokens


async def share(gateway: Gateway, system: str, *, retain: bool = True) -> None:
    """Two chats with one beginning, which the engine captures, and brings to the store."""
    for words in "ab":
        await ask(gateway, system, words, retain=retain)
    await served(gateway).collect_prefixes()


async def keep_head(gateway: Gateway, system: str) -> str:
    """As hook and provider do it, without a request. Returns the digest."""
    messages = [{"role": "system", "content": system}]
    body = {"messages": [*messages, {"role": "user", "content": "hi"}]}
    head = request_head(body, "acompletion")
    assert head is not None
    capture = captured(gateway)
    sighting = [capture.observe("m", head, "key") for _ in range(2)][-1]
    assert capture.keep(sighting, Head(messages=messages), 600)
    await capture.flush()
    return sighting.digest


async def keep_chain(gateway: Gateway, text: str, digest: str, **changes: Any) -> None:
    """As an engine captured it in another life."""
    fingerprint = FakeEngine(served_settings(gateway)).info.cache_fingerprint
    chain = StoredPrefix(
        digest=digest,
        token_ids=tuple(text.encode()[: len(text) // 256 * 256]),
        credit=2.0,
        written_at=time.time(),
        cache_fingerprint=fingerprint,
    )
    await captured(gateway).chains.keep("m", [replace(chain, **changes)])
    await captured(gateway).flush()


def served_settings(gateway: Gateway) -> EngineSettings:
    return gateway.settings.engine_settings("m")


async def chains(gateway: Gateway) -> list[str]:
    return [chain.digest for chain in await captured(gateway).chains.entries("m")]


async def forget(gateway: Gateway, digest: str) -> Forgotten:
    forgotten = await gateway.forget("m", digest)
    assert forgotten is not None
    return forgotten


async def replayed(gateway: Gateway) -> dict[str, Any]:
    replay = served(gateway).replay
    assert replay is not None
    await replay.wait()
    return replay.stats()


# Kept and replayed.


async def test_what_two_chats_share_is_in_the_cache_after_a_restart(proxies: Proxies) -> None:
    first = await proxies.open()
    await share(first, SYSTEM)
    await first.stop()
    second = await proxies.open()
    assert (await replayed(second))["items_done"] == 1
    assert await ask(second, SYSTEM, "c") >= 0.8 * len(SYSTEM)


async def test_the_stop_takes_what_was_captured_in_the_last_seconds(proxies: Proxies) -> None:
    first = await proxies.open()
    for words in "ab":
        await ask(first, SYSTEM, words)
    await first.stop()
    assert len(await chains(await proxies.open())) == 1


async def test_the_signal_takes_it_too_while_requests_go_on(proxies: Proxies) -> None:
    gateway = await proxies.open(capture={"flush_seconds": 60})
    await replayed(gateway)
    for words in "ab":
        await ask(gateway, SYSTEM, words)
    gateway.begin_stop()
    await until(lambda: captured(gateway).stats().models["m"].chains)
    assert await ask(gateway, SYSTEM, "c") > 0


async def test_a_dead_engine_costs_nothing_that_was_kept_and_its_successor_is_asked(proxies: Proxies) -> None:
    engines = Engines()
    gateway = await proxies.open(engines)
    await share(gateway, SYSTEM)
    with pytest.raises(EngineDied):
        await ask(gateway, "x", "\nfault: crash")
    await until(lambda: len(engines.loaded) == 2 and served(gateway).state == "ready")
    await share(gateway, OTHER)
    assert len(await chains(gateway)) == 2


async def test_without_the_option_nothing_is_collected(proxies: Proxies) -> None:
    gateway = await proxies.open(memory={"aging_lfu": True})
    await share(gateway, SYSTEM)
    assert await chains(gateway) == []


async def test_nothing_of_a_request_that_must_leave_no_trace_is_kept(proxies: Proxies) -> None:
    gateway = await proxies.open()
    await share(gateway, SYSTEM, retain=False)
    assert await chains(gateway) == []


async def test_nothing_of_a_model_that_is_not_captured_is_kept(proxies: Proxies) -> None:
    gateway = await proxies.open(capture={"enabled": False})
    await share(gateway, SYSTEM)
    assert await chains(gateway) == []


@pytest.mark.parametrize("options", [{"replay": False}, {"memory": {**AGING, "warm_prefix_max_tokens": 0}}])
async def test_with_replay_off_or_no_budget_no_chain_comes_back(proxies: Proxies, options: dict[str, Any]) -> None:
    first = await proxies.open()
    await share(first, SYSTEM)
    await first.stop()
    second = await proxies.open(**options)
    assert (await replayed(second))["items_total"] == 0
    assert await ask(second, SYSTEM, "c") == 0


async def test_stats_show_kept_and_waiting_chains(proxies: Proxies) -> None:
    gateway = await proxies.open(capture={"flush_seconds": 60})
    await replayed(gateway)
    await share(gateway, SYSTEM)
    assert (await gateway.stats())["capture"]["pending_chains"] == 1
    await captured(gateway).flush()
    stats = (await gateway.stats())["capture"]
    assert (stats["pending_chains"], stats["models"]["m"]["chains"]) == (0, 1)


# Forgotten.


async def test_a_forgotten_chain_leaves_store_cache_and_engine_and_stays_away(proxies: Proxies) -> None:
    engines = Engines()
    gateway = await proxies.open(engines)
    await share(gateway, SYSTEM)
    await captured(gateway).flush()
    (chain,) = await captured(gateway).chains.entries("m")
    some = chain.token_ids[1024:1280]
    assert some in proxies.bytes_on_disk()
    forgotten = await forget(gateway, chain.digest)
    assert forgotten.num_pages
    assert (forgotten.num_chains, forgotten.all_chains) == (1, False)
    assert some not in proxies.bytes_on_disk()
    assert await engines.loaded[0].stored_prefixes() == ()
    await served(gateway).collect_prefixes()
    assert await chains(gateway) == []
    assert await ask(gateway, SYSTEM, "c") == 0
    await gateway.stop()
    assert some not in proxies.bytes_on_disk()


async def test_a_head_takes_its_chains_along_and_leaves_others(proxies: Proxies) -> None:
    engines = Engines()
    gateway = await proxies.open(engines)
    await share(gateway, SYSTEM)
    await share(gateway, OTHER)
    forgotten = await forget(gateway, await keep_head(gateway, SYSTEM))
    assert (forgotten.num_chains, forgotten.all_chains) == (1, False)
    assert len(await chains(gateway)) == len(await engines.loaded[0].stored_prefixes()) == 1
    assert pack_tokens(SYSTEM.encode()[:60]) not in proxies.bytes_on_disk()
    assert pack_tokens(OTHER.encode()[:60]) in proxies.bytes_on_disk()
    assert SYSTEM[:300].encode() not in proxies.bytes_on_disk()


async def test_what_the_engine_has_captured_but_nobody_asked_for_yet_goes_with_a_head(proxies: Proxies) -> None:
    engines = Engines()
    gateway = await proxies.open(engines)
    for words in "ab":
        await ask(gateway, "Something else stands first. " * 20 + SYSTEM, words)
    assert (await forget(gateway, await keep_head(gateway, SYSTEM))).num_chains == 1
    await served(gateway).collect_prefixes()
    assert await chains(gateway) == []
    assert await engines.loaded[0].stored_prefixes() == ()


async def test_a_chain_with_the_heads_text_behind_other_words_goes_with_it(proxies: Proxies) -> None:
    gateway = await proxies.open()
    await keep_chain(gateway, "Reasoning: high. " * 20 + SYSTEM, "late")
    await keep_chain(gateway, OTHER, "other")
    await forget(gateway, await keep_head(gateway, SYSTEM))
    assert await chains(gateway) == ["other"]


async def test_a_tools_description_is_looked_for_too(proxies: Proxies) -> None:
    gateway = await proxies.open()
    await keep_chain(gateway, "Tools come late. " * 20 + SYSTEM, "late")
    tool = {"type": "function", "function": {"name": "f", "description": SYSTEM}}
    head = request_head({"messages": [], "tools": [tool]}, "acompletion")
    assert head is not None
    sighting = [captured(gateway).observe("m", head, "key") for _ in range(2)][-1]
    assert captured(gateway).keep(sighting, Head(tools=[tool]), 600)
    await forget(gateway, sighting.digest)
    assert await chains(gateway) == []


async def test_a_chain_that_is_a_part_of_the_head_goes_with_it(proxies: Proxies) -> None:
    gateway = await proxies.open()
    await keep_chain(gateway, f"<|im_start|>system\n{SYSTEM}"[:600], "part")
    await forget(gateway, await keep_head(gateway, SYSTEM))
    assert await chains(gateway) == []


async def test_chains_in_tokens_that_this_engine_does_not_know_go_with_a_head(proxies: Proxies) -> None:
    gateway = await proxies.open()
    await keep_chain(gateway, OTHER, "other", cache_fingerprint="another tokenizer")
    await forget(gateway, await keep_head(gateway, SYSTEM))
    assert await chains(gateway) == []


async def test_without_an_engine_all_chains_of_the_model_go_with_a_head_and_it_is_said(proxies: Proxies) -> None:
    gateway = await proxies.open(load="lazy")
    await keep_chain(gateway, OTHER, "other")
    forgotten = await forget(gateway, await keep_head(gateway, SYSTEM))
    assert forgotten == Forgotten(num_pages=0, num_chains=1, all_chains=True)
    assert served(gateway).state == "lazy"
    assert await chains(gateway) == []
    assert pack_tokens(OTHER.encode()[:60]) not in proxies.bytes_on_disk()


async def test_where_a_template_puts_nothing_of_a_head_first_all_chains_go_with_it(proxies: Proxies) -> None:
    engines = Engines(kind=UsersFirst)
    gateway = await proxies.open(engines)
    await share(gateway, OTHER)
    forgotten = await forget(gateway, await keep_head(gateway, SYSTEM))
    assert (forgotten.num_chains, forgotten.all_chains) == (1, True)
    assert await chains(gateway) == []
    assert await engines.loaded[0].stored_prefixes() == ()


async def test_an_engine_that_cannot_be_had_counts_as_none(proxies: Proxies) -> None:
    gateway = await proxies.open(memory={**AGING, "sysmem_kv_cache": 1, "disk_cache_dir": "pages"})
    await keep_chain(gateway, OTHER, "other")
    digest = await keep_head(gateway, SYSTEM)
    await served(gateway).close()
    forgotten = await forget(gateway, digest)
    assert (forgotten.num_pages, forgotten.num_chains, forgotten.all_chains) == (None, 1, True)
    assert "closed" in forgotten.reason or "shutting down" in forgotten.reason
    assert await captured(gateway).entries("m") == []


async def test_without_an_engine_a_chain_takes_along_only_what_begins_like_it(proxies: Proxies) -> None:
    gateway = await proxies.open(load="lazy")
    await keep_chain(gateway, SYSTEM, "long")
    await keep_chain(gateway, SYSTEM[:600], "short")
    await keep_chain(gateway, OTHER, "other")
    assert await forget(gateway, "long") == Forgotten(num_pages=0, num_chains=2)
    assert await chains(gateway) == ["other"]


async def test_a_chain_that_is_forgotten_leaves_the_running_replay(proxies: Proxies) -> None:
    first = await proxies.open()
    await keep_chain(first, OTHER, "other")
    await first.stop()
    second = await proxies.open(Engines(seconds_per_page=0.05))
    await until(lambda: served(second).replay and served(second).replay.stats()["state"] == "prefilling")
    await forget(second, "other")
    stats = await replayed(second)
    assert (stats["items_done"], stats["items_skipped"]) == (1, 1)
