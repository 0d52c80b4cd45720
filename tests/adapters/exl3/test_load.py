"""What cannot work is said at load, with the setting's name."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from exllamav3_adapters.contract import Chat
from exllamav3_adapters.cpu.loading import load_parts, with_defaults
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import EngineDied, LoadFailed
from exllamav3_adapters.exl3.engine import Exl3Engine

Load = Callable[..., Awaitable[Exl3Engine]]
HI = Chat(messages=[{"role": "user", "content": "hi"}])


async def test_a_system_memory_tier_of_less_than_two_pages_names_what_it_takes(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exllamav3_adapters.exl3.tiers.LEAST_PAGES", 20)  # a page of the tiny model is 0.25 MiB
    with pytest.raises(LoadFailed, match=r"sysmem_kv_cache: 1 MiB hold less than 20 pages .* set it to 3 at least"):
        await load(MemoryOptions(sysmem_kv_cache=1))


async def test_a_disk_cache_that_is_a_file_is_named(load: Load, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadFailed, match=r"disk_cache_dir: .*/file cannot be a folder"):
        await load(MemoryOptions(sysmem_kv_cache=64, disk_cache_dir=str(tmp_path / "file")))


async def test_closing_frees_what_the_engine_was_made_of_once(tiny_folder: Path) -> None:
    options = ModelOptions(model_dir=str(tiny_folder), max_seq_len=512, cache_size=512, chunk_size=256)
    settings = with_defaults(EngineSettings(model_key="tiny", model=options))
    freed: list[bool] = []
    parts = dataclasses.replace(load_parts(settings, lambda progress: None), release=lambda: freed.append(True))
    engine = await asyncio.to_thread(Exl3Engine, "cpu", settings, parts)
    await engine.close()
    await engine.close()
    assert freed == [True]


async def test_a_template_without_end_ends_the_engine_and_not_only_the_request(load: Load) -> None:
    engine = await load()
    engine._render_seconds = 0.3
    engine._render_thread.submit(time.sleep, 1.0)
    with pytest.raises(EngineDied, match=r"has not answered for 0.3 s"):
        await engine.render(HI)
