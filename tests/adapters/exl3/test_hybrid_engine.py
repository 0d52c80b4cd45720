"""The engine over a tiny hybrid model: what a client, a replay and a restart see of its checkpoints."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import logging
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from exllamav3_adapters.cpu.install import install

install()

import torch
from exl3_requests import answer, greedy, prompt
from exllamav3 import Generator
from exllamav3.cache.recurrent import PairedState, RecurrentCache
from tiny_model import write_tiny_hybrid

from exllamav3_adapters.contract import Prefilled, Prompt
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import InvalidRequest, LoadFailed
from exllamav3_adapters.exl3.checkpoint_install import install_checkpoints
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.exl3.generator_options import (
    effective_settings,
    frontiers_are_ours,
    gds_is_ours,
    generator_options,
)
from exllamav3_adapters.registry import find_engine

Load = Callable[..., Awaitable[Exl3Engine]]
PAGE = 256
SYSMEM = MemoryOptions(sysmem_kv_cache=64)
FRONTIERS = "recurrent_frontier_checkpoints"


@pytest.fixture(scope="module")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_hybrid(tmp_path_factory.mktemp("hybrid") / "tiny", max_position_embeddings=16384)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    return folder


@pytest_asyncio.fixture
async def load_hybrid(hybrid_folder: Path) -> AsyncIterator[Load]:
    engines: list[Exl3Engine] = []

    async def load(memory: MemoryOptions = SYSMEM, **model: Any) -> Exl3Engine:
        sizes: dict[str, Any] = {"max_seq_len": 4096, "cache_size": 4096, "chunk_size": 256, FRONTIERS: True} | model
        options = ModelOptions(model_dir=str(hybrid_folder), **sizes)
        settings = EngineSettings(model_key="hybrid", model=options, memory=memory)
        engine = await find_engine("cpu").load(settings, lambda progress: None)
        assert isinstance(engine, Exl3Engine)
        engines.append(engine)
        return engine

    yield load
    for engine in engines:
        await engine.close()


def disk(folder: Path, **options: Any) -> MemoryOptions:
    return MemoryOptions(sysmem_kv_cache=64, disk_cache_dir=str(folder), **options)


def longer(wanted: Prompt, num_tokens: int, seed: int) -> Prompt:
    return Prompt(
        token_ids=(*wanted.token_ids, *prompt(num_tokens, seed).token_ids), num_head_tokens=wanted.num_head_tokens
    )


async def prefilled(engine: Exl3Engine, wanted: Prompt) -> Prefilled:
    events = [event async for event in engine.prefill(wanted)]
    assert isinstance(events[-1], Prefilled)
    return events[-1]


def states_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*.rs"))


def files_with(folder: Path, token_ids: tuple[int, ...]) -> list[Path]:
    """Files that hold these tokens, as the disk tier writes them (64-bit little-endian)."""
    needle = b"".join(token.to_bytes(8, "little") for token in token_ids)
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


async def test_regenerating_an_answer_computes_one_token_of_the_prompt(load_hybrid: Load) -> None:
    engine = await load_hybrid()
    wanted = prompt(700)
    first, _ = await answer(engine.generate(wanted, greedy(20)))
    again, finished = await answer(engine.generate(wanted, greedy(20)))
    assert again == first
    assert finished.cached_tokens == 699
    counters = (await engine.stats()).counters
    assert counters["checkpoint_hits_frontier"] == 1
    assert counters["tokens_resumed"] == 699


async def test_a_checkpoint_that_memory_has_no_room_for_fails_nobody(
    load_hybrid: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await load_hybrid()
    expected, _ = await answer(engine.generate(prompt(700), greedy(20)))

    def run_out(state: PairedState) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")

    monkeypatch.setattr(PairedState, "stash", run_out)
    await engine.forget(prompt(700))
    text, finished = await answer(engine.generate(prompt(700), greedy(20)))
    assert (text, finished.cached_tokens) == (expected, 0)
    counters = (await engine.stats()).counters
    assert counters["checkpoints"] == 0
    assert counters["checkpoints_without_memory"] > 0


async def test_new_conversations_compute_only_what_follows_the_head(load_hybrid: Load) -> None:
    engine = await load_hybrid()
    head = Prompt(token_ids=prompt(600, seed=1).token_ids, num_head_tokens=600)
    await answer(engine.generate(longer(head, 300, seed=2), greedy(4)))
    _, finished = await answer(engine.generate(longer(head, 200, seed=3), greedy(4)))
    assert finished.cached_tokens == 600


async def test_a_replayed_head_serves_the_first_conversation(load_hybrid: Load) -> None:
    engine = await load_hybrid()
    head = prompt(600, seed=4)
    assert (await prefilled(engine, head)).cached_tokens == 0
    _, finished = await answer(engine.generate(longer(head, 200, seed=5), greedy(4)))
    assert finished.cached_tokens == 600


@pytest.mark.parametrize("frontiers", [True, False])
async def test_a_replay_that_yields_goes_on_from_where_it_was(load_hybrid: Load, frontiers: bool) -> None:
    engine = await load_hybrid(**{FRONTIERS: frontiers})
    wanted = prompt(8 * PAGE + 30, seed=6)
    stream = engine.prefill(wanted)
    await anext(stream)
    progress: Any = None
    while progress is None or progress.done_tokens < 2 * PAGE:
        progress = await anext(stream)
    await answer(engine.generate(prompt(50, seed=7), greedy(2)))
    events = [event async for event in stream]
    counters = (await engine.stats()).counters
    assert counters["prefill_yields"] == 1
    assert counters["checkpoint_hits_page"] == 1
    assert isinstance(events[-1], Prefilled)
    assert events[-1].cached_tokens <= 1


async def test_a_request_whose_client_left_is_taken_up_again(load_hybrid: Load) -> None:
    engine = await load_hybrid()
    wanted = prompt(9 * PAGE, seed=8)
    stream = engine.generate(wanted, greedy(1))
    progress: Any = await anext(stream)
    while getattr(progress, "done_tokens", 0) < 2 * PAGE:
        progress = await anext(stream)
    await stream.aclose()
    _, finished = await answer(engine.generate(wanted, greedy(1)))
    assert finished.cached_tokens >= 2 * PAGE


async def test_frontiers_are_there_after_a_restart(load_hybrid: Load, tmp_path: Path) -> None:
    first = await load_hybrid(disk(tmp_path))
    wanted = prompt(700, seed=9)
    await answer(first.generate(wanted, greedy(1)))
    await first.close()
    second = await load_hybrid(disk(tmp_path))
    # The answer's one token was never computed, so the state is that after the prompt.
    _, finished = await answer(second.generate(longer(wanted, 30, seed=10), greedy(4)))
    assert finished.cached_tokens == 700
    _, finished = await answer(second.generate(wanted, greedy(1)))
    assert finished.cached_tokens == 699


async def test_what_is_not_retained_leaves_no_checkpoint(load_hybrid: Load, tmp_path: Path) -> None:
    engine = await load_hybrid(disk(tmp_path))
    await answer(engine.generate(prompt(200, seed=11), greedy(20), retain=False))
    assert (await engine.stats()).counters["checkpoints"] == 0
    stream = engine.generate(prompt(201, seed=12), greedy(1000), retain=False)
    await anext(stream)
    await stream.aclose()
    assert (await engine.stats()).counters["checkpoints"] == 0
    await engine.close()
    assert not states_in(tmp_path)


async def test_what_is_forgotten_leaves_no_checkpoint_in_memory_or_on_disk(load_hybrid: Load, tmp_path: Path) -> None:
    engine = await load_hybrid(disk(tmp_path))
    head = Prompt(token_ids=prompt(100, seed=13).token_ids, num_head_tokens=100)
    wanted, other = longer(head, 500, seed=14), prompt(300, seed=15)
    await answer(engine.generate(wanted, greedy(20)))
    await answer(engine.generate(other, greedy(20)))
    await engine.forget(Prompt(token_ids=wanted.token_ids[:400]))
    assert (await engine.stats()).counters["checkpoint_evictions_forgotten"] >= 3
    assert not files_with(tmp_path, wanted.token_ids[:16])
    assert not files_with(tmp_path, wanted.token_ids[2 * PAGE : 2 * PAGE + 16])
    assert files_with(tmp_path, other.token_ids[:16])
    _, finished = await answer(engine.generate(other, greedy(1)))
    assert finished.cached_tokens == 299
    _, finished = await answer(engine.generate(wanted, greedy(1)))
    assert finished.cached_tokens == 0


async def test_a_short_prompt_is_forgotten_with_its_checkpoints(load_hybrid: Load) -> None:
    engine = await load_hybrid()
    wanted = prompt(100, seed=16)
    await answer(engine.generate(wanted, greedy(20)))
    await engine.forget(wanted)
    assert (await engine.stats()).counters["checkpoints"] == 0
    _, finished = await answer(engine.generate(wanted, greedy(1)))
    assert finished.cached_tokens == 0


async def test_frontiers_and_aging_work_together(load_hybrid: Load) -> None:
    engine = await load_hybrid(MemoryOptions(sysmem_kv_cache=64, aging_lfu=True))
    wanted = prompt(700, seed=17)
    first, _ = await answer(engine.generate(wanted, greedy(20)))
    for seed in range(18, 21):
        await answer(engine.generate(prompt(15 * PAGE, seed=seed), greedy(1)))
    again, finished = await answer(engine.generate(wanted, greedy(20)))
    assert finished.cached_tokens == 699
    assert again == first


async def test_a_pinned_prefix_resumes_where_it_ends_after_many_dearer_prompts(load_hybrid: Load) -> None:
    # A MiB holds 85 checkpoints of the tiny model; each prompt leaves two.
    engine = await load_hybrid(MemoryOptions(sysmem_kv_cache=64, sysmem_recurrent_cache=1), recurrent_eviction="gds")
    wanted = prompt(300, seed=30)
    events = [event async for event in engine.prefill(wanted, pin=True)]
    assert events[-1].pinned_tokens == 300
    for seed in range(50):
        await answer(engine.generate(prompt(400, seed=100 + seed), greedy(1)))
    counters = (await engine.stats()).counters
    assert counters["checkpoint_evictions_room"] - counters["checkpoint_evictions_stranded"] > 0
    assert (await prefilled(engine, longer(wanted, 20, seed=31))).cached_tokens == 300


async def test_the_cost_of_prefill_is_measured_while_serving(load_hybrid: Load) -> None:
    engine = await load_hybrid(recurrent_eviction="gds")
    await answer(engine.generate(prompt(10 * PAGE + 1, seed=32), greedy(1)))
    counters = (await engine.stats()).counters
    assert counters["prefill_cost_samples"] == 10
    assert counters["prefill_cost_d"] > 0
    assert counters["prefill_cost_e"] >= 0
    assert engine.info.effective_settings["model.prefill_cost_coefficients"] == "measured (ours)"


async def test_without_gds_nothing_is_measured(load_hybrid: Load) -> None:
    engine = await load_hybrid(prefill_cost_coefficients=(1.0, 0.5))
    await answer(engine.generate(prompt(2 * PAGE, seed=33), greedy(1)))
    assert not [name for name in (await engine.stats()).counters if name.startswith("prefill_cost")]
    assert "model.prefill_cost_coefficients" not in engine.info.effective_settings


def settings(**model: Any) -> EngineSettings:
    return EngineSettings(model_key="hybrid", model=ModelOptions(model_dir="x", **model))


class GeneratorWithFrontiers:
    def __init__(
        self, max_chunk_size: int, recurrent_cache_size: int, recurrent_frontier_checkpoints: bool, **kwargs: Any
    ) -> None: ...


def test_the_option_is_left_to_an_engine_that_names_it() -> None:
    told = settings(recurrent_frontier_checkpoints=True)
    assert frontiers_are_ours(told, Generator)
    assert FRONTIERS not in generator_options(told, Generator, is_hybrid=True)
    assert not frontiers_are_ours(told, GeneratorWithFrontiers)
    assert generator_options(told, GeneratorWithFrontiers, is_hybrid=True)[FRONTIERS] is True
    shown = [
        effective_settings(told, generator, is_hybrid=True)[f"model.{FRONTIERS}"]
        for generator in (Generator, GeneratorWithFrontiers)
    ]
    assert shown == ["True (ours)", "True (exllamav3)"]


class GeneratorWithGds:
    def __init__(
        self, max_chunk_size: int, recurrent_cache_size: int, recurrent_eviction: str, **kwargs: Any
    ) -> None: ...


class GeneratorWithCosts:
    def __init__(
        self,
        max_chunk_size: int,
        recurrent_cache_size: int,
        recurrent_eviction: str,
        prefill_cost_coefficients: list[float],
        **kwargs: Any,
    ) -> None: ...


def test_the_order_of_checkpoints_is_left_to_an_engine_that_names_it() -> None:
    told = settings(recurrent_eviction="gds", prefill_cost_coefficients=(3.0, 0.5))
    shown = [
        [
            effective_settings(told, generator, is_hybrid=True)[f"model.{name}"]
            for name in ("recurrent_eviction", "prefill_cost_coefficients")
        ]
        for generator in (Generator, GeneratorWithCosts)
    ]
    assert shown == [["gds (ours)", "[3.0, 0.5] (ours)"], ["gds (exllamav3)", "[3.0, 0.5] (exllamav3)"]]
    assert [gds_is_ours(told, generator) for generator in (Generator, GeneratorWithCosts)] == [True, False]
    assert "recurrent_eviction" not in generator_options(told, Generator, is_hybrid=True)
    passed = generator_options(told, GeneratorWithCosts, is_hybrid=True)
    assert (passed["recurrent_eviction"], passed["prefill_cost_coefficients"]) == ("gds", [3.0, 0.5])


def test_an_engine_with_an_order_of_its_own_and_no_coefficients_refuses_them() -> None:
    told = settings(recurrent_eviction="gds", prefill_cost_coefficients=(3.0, 0.5))
    with pytest.raises(LoadFailed, match=r"model\.prefill_cost_coefficients"):
        generator_options(told, GeneratorWithGds, is_hybrid=True)
    assert generator_options(settings(recurrent_eviction="gds"), GeneratorWithGds, is_hybrid=True)


def test_the_stock_order_is_named_to_nobody() -> None:
    assert not gds_is_ours(settings(), Generator)
    assert "recurrent_eviction" not in generator_options(settings(), GeneratorWithGds, is_hybrid=True)


def test_the_size_of_the_cache_of_checkpoints_is_told_for_hybrids_only() -> None:
    assert generator_options(settings(), Generator, is_hybrid=True)["recurrent_cache_size"] == 4096 * 2**20
    assert "recurrent_cache_size" not in generator_options(settings(), Generator)


async def test_options_for_recurrent_layers_warn_on_a_model_without(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        engine = await load(SYSMEM, recurrent_frontier_checkpoints=True, recurrent_eviction="gds")
    [message] = [record.getMessage() for record in caplog.records if "recurrent" in record.getMessage()]
    assert "model.recurrent_frontier_checkpoints, model.recurrent_eviction has no effect" in message
    assert "model.recurrent_eviction" not in engine.info.effective_settings
    assert f"model.{FRONTIERS}" not in engine.info.effective_settings
    assert "checkpoints" not in (await engine.stats()).counters


@pytest.mark.parametrize(
    ("draft_model", "max_draft_tokens"), [(object(), 4), (None, 4)], ids=["model", "repeated text"]
)
def test_drafts_and_frontiers_are_refused_together(draft_model: object, max_draft_tokens: int) -> None:
    generator = types.SimpleNamespace(
        recurrent_cache=RecurrentCache(model=None),
        draft_model=draft_model,
        max_draft_tokens=max_draft_tokens,
        cpu_page_cache=None,
    )
    with pytest.raises(LoadFailed, match="does not work together with drafts"):
        install_checkpoints(generator, keeps_frontiers=True)


async def test_a_banned_string_that_cannot_be_taken_back_is_the_requests_fault(load_hybrid: Load) -> None:
    """No model of the CPU engine has states with a limit; those of sliding windows say theirs in this attribute."""
    engine = await load_hybrid()

    class LimitedState:
        guaranteed_rollback = 16

    engine._scheduler._generator.cache.recurrent_state_cls = LimitedState
    with pytest.raises(InvalidRequest, match="banned_strings holds one of more tokens") as caught:
        await answer(engine.generate(prompt(20), greedy(4, banned_strings=("short", "much too long"))))
    assert caught.value.param == "banned_strings"
