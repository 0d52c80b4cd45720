"""The engine without anything around it: exllamav3's generator, driven synchronously. Started by `engine_loop.py`.

Reads one JSON line of `EngineSettings`, then one of `LoopRequest` a run, and answers each with a line: the loaded
model, and the `Answer`s. No HTTP, no thread, no contract; the parts are those that the engine `cpu` loads.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

import msgspec
from answer import Answer
from engine_loop import LoopAnswers, LoopRequest

from exllamav3_adapters.contract import Chat
from exllamav3_adapters.cpu.install import install
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.priority import lower_priority
from exllamav3_adapters.process_options import PROCESS_OPTIONS


class EngineLoop:
    """One generator over its own copy of the model and its own cache."""

    def __init__(self, settings: EngineSettings) -> None:
        from exllamav3 import Generator

        from exllamav3_adapters.cpu.loading import load_parts, with_defaults
        from exllamav3_adapters.exl3.generator_options import generator_options

        settings = with_defaults(settings)
        loaded = load_parts(settings, lambda progress: None)
        self._renderer = loaded.renderer
        self._stop_token_ids = list(loaded.model.config.eos_token_id_list)
        self._chunk_size = settings.model.chunk_size
        self._generator = Generator(
            model=loaded.model,
            cache=loaded.cache,
            tokenizer=loaded.tokenizer,
            **generator_options(settings, Generator),
        )

    def run(self, request: LoopRequest) -> LoopAnswers:
        """All of its chats together, from before they are enqueued to the last one's end."""
        jobs = [self._job(chat, request) for chat in request.chats]
        runs = [_Run() for _ in jobs]
        by_job = dict(zip(jobs, runs, strict=True))
        steps: list[float] = []
        began = time.perf_counter()
        for job in jobs:
            self._generator.enqueue(job)
        while self._generator.num_remaining_jobs():
            before = time.perf_counter()
            results = self._generator.iterate()
            now = time.perf_counter()
            if all(run.first_token is None for run in runs):
                steps.append(now - before)
            for result in results:
                by_job[result["job"]].take(result, now - began)
        return LoopAnswers(answers=[run.answer() for run in runs], prefill_steps=steps)

    def _job(self, messages: list[dict[str, Any]], request: LoopRequest) -> Any:
        import torch
        from exllamav3 import ComboSampler, Job

        token_ids = self._renderer.render(Chat(messages=messages)).token_ids
        return Job(
            torch.tensor([token_ids], dtype=torch.long),
            max_new_tokens=request.max_tokens,
            min_new_tokens=request.min_tokens,
            sampler=ComboSampler(temperature=0.0),
            stop_conditions=self._stop_token_ids,
            max_rq_tokens=self._chunk_size,
        )


class _Run:
    """What is known of one job so far."""

    def __init__(self) -> None:
        self.first_token: float | None = None
        self._last_token = 0.0
        self._end: dict[str, Any] = {}

    def take(self, result: dict[str, Any], seconds: float) -> None:
        if result.get("text"):
            self._last_token = seconds
            if self.first_token is None:
                self.first_token = seconds
        if result.get("eos"):
            self._end = result

    def answer(self) -> Answer:
        assert self.first_token is not None, f"the job ended without text: {self._end.get('eos_reason')}"
        return Answer(
            first_token=self.first_token,
            last_token=self._last_token,
            prompt_tokens=self._end["prompt_tokens"],
            cached_tokens=self._end["cached_tokens"],
            completion_tokens=self._end["new_tokens"],
        )


def main() -> None:
    lines = sys.stdin
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    lower_priority(PROCESS_OPTIONS["cpu"].niceness)
    install()
    loop = EngineLoop(msgspec.json.decode(lines.readline(), type=EngineSettings))
    _send(answers, LoopAnswers(answers=[], prefill_steps=[]))
    for line in lines:
        _send(answers, loop.run(msgspec.json.decode(line, type=LoopRequest)))


def _send(answers: TextIO, value: LoopAnswers) -> None:
    answers.write(msgspec.json.encode(value).decode() + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
