"""What cannot work is said at load, with the setting's name."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from exllamav3_adapters.contract import Chat
from exllamav3_adapters.engine_settings import MemoryOptions
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


async def test_a_template_without_end_ends_the_engine_and_not_only_the_request(load: Load) -> None:
    engine = await load()
    engine._render_seconds = 0.3
    engine._render_thread.submit(time.sleep, 1.0)
    with pytest.raises(EngineDied, match=r"has not answered for 0.3 s"):
        await engine.render(HI)
