"""A tiny hybrid model under exllamav3's generator, driven by token ids, with every logit kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from exllamav3 import Generator, GreedySampler

from exllamav3_adapters.cpu.model import CpuModel, make_cache
from exllamav3_adapters.exl3.checkpoint_cache import CheckpointCache
from exllamav3_adapters.exl3.checkpoint_eviction import CheckpointEviction
from exllamav3_adapters.exl3.checkpoint_install import install_checkpoints
from exllamav3_adapters.exl3.recurrent_job import RecurrentJob

MEBIBYTE = 2**20


class RecordedJob(RecurrentJob):
    """What a request says of itself elsewhere is said here by attributes."""

    head: int = 0
    retain: bool = True
    replay: bool = False
    logits: list[torch.Tensor]

    @property
    def num_head_tokens(self) -> int:
        return self.head

    @property
    def leaves_checkpoints(self) -> bool:
        return self.retain

    @property
    def is_replay(self) -> bool:
        return self.replay

    def receive_logits(self, logits: torch.Tensor) -> Any:
        self.__dict__.setdefault("logits", []).append(logits.clone())
        return super().receive_logits(logits)


@dataclass
class Run:
    """One request's answer."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def cached(self) -> int:
        return int(self.last["cached_tokens"])


class HybridRun:
    """A generator with its own cache. `frontiers` and `eviction` are the options, `sysmem` the tier's MiB."""

    def __init__(
        self,
        model: CpuModel,
        tokenizer: Any,
        *,
        frontiers: bool = True,
        sysmem: int = 64,
        cache_tokens: int = 8192,
        eviction: CheckpointEviction | None = None,
        **options: Any,
    ) -> None:
        self.cache = make_cache(model, cache_tokens)
        self.generator = Generator(
            model=model,
            cache=self.cache,
            tokenizer=tokenizer,
            cpu_cache_size=sysmem * MEBIBYTE,
            **({"max_chunk_size": 256} | options),
        )
        self.checkpoints: CheckpointCache = install_checkpoints(
            self.generator, keeps_frontiers=frontiers, eviction=eviction
        )

    def job(
        self,
        token_ids: list[int],
        max_new_tokens: int,
        *,
        head: int = 0,
        retain: bool = True,
        replay: bool = False,
        **options: Any,
    ) -> RecordedJob:
        defaults: dict[str, Any] = {"sampler": GreedySampler(), "max_rq_tokens": 512}
        job = RecordedJob(torch.tensor([token_ids]), max_new_tokens, **(defaults | options))
        job.identifier = job
        job.head, job.retain, job.replay = head, retain, replay
        return job

    def run(self, *jobs: RecordedJob) -> list[Run]:
        """Runs them together to their ends."""
        runs = {job: Run() for job in jobs}
        for job in jobs:
            self.generator.enqueue(job)
        while self.generator.num_remaining_jobs():
            for result in self.generator.iterate():
                if result["stage"] == "error":
                    raise result["error"]
                if result["stage"] == "streaming":
                    run = runs[result["identifier"]]
                    run.text += result.get("text", "")
                    run.token_ids += result["token_ids"].flatten().tolist() if "token_ids" in result else []
                    run.last = result
        for job, run in runs.items():
            run.logits = torch.cat(job.logits, 1)
        self.generator.pagetable.validate_pagetable([])
        return list(runs.values())

    def ask(self, token_ids: list[int], max_new_tokens: int, **options: Any) -> Run:
        [run] = self.run(self.job(token_ids, max_new_tokens, **options))
        return run

    def fill(self, seed: int = 99) -> None:
        """Takes every page of the cache for another prompt."""
        self.ask(tokens(self.cache.max_num_tokens - 256, seed), 1, retain=False, max_rq_tokens=None)


def tokens(length: int, seed: int) -> list[int]:
    """Random tokens of the tiny model."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(3, 259, (length,), generator=generator).tolist()
    return found
