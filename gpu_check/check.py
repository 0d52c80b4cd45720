"""What every part is given: the engine to check, its models, and a folder that outlives the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from exllamav3_adapters.contract import Engine
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.hosted import HostedEngine
from exllamav3_adapters.registry import find_engine
from gpu_check.model_shape import CARD_HYBRID, CARD_LLAMA, TINY_HYBRID, TINY_LLAMA, HybridShape, LlamaShape

T = TypeVar("T")
EngineName = Literal["cuda", "cpu"]
ModelName = Literal["llama", "hybrid"]
Figures = dict[str, Any]
"""What a part has to say of itself, as it goes into the report: JSON values by name, with the unit in the name."""


class PartFailed(Exception):
    """What the check found wrong, for the report."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One run of one part."""

    engine: EngineName
    state: Path
    """Models, the built extension, and the results of the parts that are done."""
    seconds: float
    """After which the part is ended from outside."""
    say: Callable[[str], None] = lambda text: None
    """Shows what the part is at."""

    def pick(self, *, card: T, cpu: T) -> T:
        """A size: what takes a card no time takes a CPU minutes."""
        return card if self.engine == "cuda" else cpu

    def shape(self, model: ModelName) -> LlamaShape | HybridShape:
        if model == "llama":
            return CARD_LLAMA if self.engine == "cuda" else TINY_LLAMA
        return CARD_HYBRID if self.engine == "cuda" else TINY_HYBRID

    def source(self, model: ModelName) -> Path:
        """The folder with 16-bit weights."""
        return self.state / "models" / f"{model}-{self.engine}"

    def model(self, model: ModelName) -> Path:
        """The folder that the engine loads: on a card the EXL3 one."""
        return self.source(model) if self.engine == "cpu" else self.state / "models" / f"{model}-exl3"

    def settings(self, model: ModelName, memory: MemoryOptions | None = None, **options: Any) -> EngineSettings:
        context = self.pick(card=8192, cpu=2048)
        sizes: dict[str, Any] = {"max_seq_len": context, "cache_size": context, "chunk_size": 512, "max_batch_size": 4}
        return EngineSettings(
            model_key=f"check-{model}",
            model=ModelOptions(model_dir=str(self.model(model)), **(sizes | options)),
            memory=memory or MemoryOptions(),
        )

    @asynccontextmanager
    async def loaded(self, settings: EngineSettings, *, hosted: bool = False) -> AsyncIterator[Engine]:
        """An engine in this process, or in one of its own."""
        if hosted:
            engine: Engine = await HostedEngine.load(self.engine, settings, lambda progress: None)
        else:
            engine = await find_engine(self.engine).load(settings, lambda progress: None)
        try:
            yield engine
        finally:
            await engine.close()


def expect(condition: bool, what: str) -> None:
    """Raises PartFailed, which says what should have been and what was."""
    if not condition:
        raise PartFailed(what)
