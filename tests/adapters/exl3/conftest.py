"""The common engine over a tiny model, in process: chunks of a page, a cache of sixteen pages."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from exllamav3_adapters.cpu.install import install

install()

import torch
from exllamav3 import Job
from tiny_model import write_tiny_model

from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.exl3 import scheduler
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.exl3.guarded_job import GuardedJob
from exllamav3_adapters.registry import find_engine

Load = Callable[..., Awaitable[Exl3Engine]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A tiny model gains nothing from a second thread, and on a busy machine the two wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("exl3") / "tiny")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"
    )
    return folder


@pytest_asyncio.fixture
async def load(tiny_folder: Path) -> AsyncIterator[Load]:
    engines: list[Exl3Engine] = []

    async def load_engine(memory: MemoryOptions | None = None, **model: Any) -> Exl3Engine:
        sizes: dict[str, Any] = {"max_seq_len": 4096, "cache_size": 4096, "chunk_size": 256} | model
        settings = EngineSettings(
            model_key="tiny",
            model=ModelOptions(model_dir=str(tiny_folder), **sizes),
            memory=memory or MemoryOptions(),
        )
        engine = await find_engine("cpu").load(settings, lambda progress: None)
        assert isinstance(engine, Exl3Engine)
        engines.append(engine)
        return engine

    yield load_engine
    for engine in engines:
        await engine.close()


@pytest.fixture
def on_next_job(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Job], None]], None]:
    """Has the next job that is queued pass through a function first: to force its tokens, or to make it fail."""

    def arm(change: Callable[[Job], None]) -> None:
        pending = [change]

        class ChangedJob(GuardedJob):
            def prepare_for_queue(self, *arguments: Any, **options: Any) -> None:
                super().prepare_for_queue(*arguments, **options)
                if pending and not self.is_requeued:
                    pending.pop()(self)

        monkeypatch.setattr(scheduler, "GuardedJob", ChangedJob)

    return arm
