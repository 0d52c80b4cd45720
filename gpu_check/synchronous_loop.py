"""exllamav3's generator driven as its own examples do: one thread, no contract, nothing between it and the model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from exllamav3_adapters.contract import Prompt
from exllamav3_adapters.engine_settings import EngineSettings
from gpu_check.check import EngineName

if TYPE_CHECKING:  # it imports exllamav3, for which the CPU must have been prepared
    from exllamav3_adapters.exl3.engine import LoadedModel


class SynchronousLoop:
    """Loads a model of its own in this process, and frees it at the end of the block. Everything blocks."""

    def __init__(self, engine: EngineName, settings: EngineSettings) -> None:
        self._loaded = _load(engine, settings)
        from exllamav3 import Generator

        self._chunk_size = settings.model.chunk_size
        self._generator = Generator(
            model=self._loaded.model,
            cache=self._loaded.cache,
            tokenizer=self._loaded.tokenizer,
            max_chunk_size=self._chunk_size,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._generator.close()
        self._loaded.release()

    def decode_rate(self, prompt: Prompt, tokens: int) -> float:
        """Tokens a second after the first one, of a greedy answer of so many."""
        import torch
        from exllamav3 import GreedySampler, Job

        job = Job(
            torch.tensor([prompt.token_ids], dtype=torch.long),
            max_new_tokens=tokens,
            sampler=GreedySampler(),
            max_rq_tokens=self._chunk_size,
        )
        self._generator.enqueue(job)
        first = last = 0.0
        counted = 0
        while self._generator.num_remaining_jobs():
            for result in self._generator.iterate():
                if result.get("text"):
                    last = time.perf_counter()
                    first = first or last
                if result.get("eos"):
                    counted = int(result["new_tokens"])
        return (counted - 1) / max(last - first, 1e-9)


def _load(engine: EngineName, settings: EngineSettings) -> LoadedModel:
    def report(progress: Any) -> None: ...

    if engine == "cpu":
        from exllamav3_adapters.cpu.install import install

        install()
        from exllamav3_adapters.cpu.loading import load_parts, with_defaults

        return load_parts(with_defaults(settings), report)
    import torch

    from exllamav3_adapters.cuda.loading import load_parts as load_cuda_parts

    return load_cuda_parts(settings, report, torch.cuda.device_count())
