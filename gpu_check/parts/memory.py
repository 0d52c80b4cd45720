"""Memory of the GPU runs out in one prefill: that request fails, and says what to lower; the next one is served."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from exllamav3_adapters.contract import Engine, Prompt
from exllamav3_adapters.errors import EngineError, JobFailed
from gpu_check.check import Check, Figures, PartFailed, expect
from gpu_check.requests import ask, random_prompt

_MEBIBYTE = 2**20
_BLOCKS = (256 * _MEBIBYTE, 16 * _MEBIBYTE, 2 * _MEBIBYTE, _MEBIBYTE // 4)
"""Bytes. In this order they take what torch holds in reserve."""


async def check_memory_fault(check: Check) -> Figures:
    """The engine is in this process, so that it shares torch's memory with what takes it away."""
    vocabulary = check.shape("llama").vocabulary
    short, long = random_prompt(40, 1, vocabulary), random_prompt(check.pick(card=4000, cpu=900), 2, vocabulary)
    async with check.loaded(check.settings("llama", chunk_size=check.pick(card=2048, cpu=512))) as engine:
        before = await ask(engine, short, 8)
        check.say("a prefill without memory")
        with _no_memory_left(check, engine):
            message = await _failure(engine, long)
        check.say("the same with memory")
        after, served = await ask(engine, short, 8), await ask(engine, long, 8)
        expect(after.text == before.text, "the engine answers otherwise after the fault")
        expect(bool(served.text), "the request that had failed is not served later")
    expect("memory" in message and "lower" in message, f"the message does not help: {message}")
    return {"message": message}


async def _failure(engine: Engine, prompt: Prompt) -> str:
    try:
        await ask(engine, prompt, 8)
    except JobFailed as error:
        return error.message
    except EngineError as error:
        raise PartFailed(f"the engine ends instead of the request: {error.message}") from error
    raise PartFailed("the prefill had memory enough: nothing is shown")


@contextlib.contextmanager
def _no_memory_left(check: Check, engine: Engine) -> Iterator[None]:
    if check.engine == "cpu":
        with _refusing_forward(engine):
            yield
        return
    import torch

    torch.cuda.empty_cache()
    held: list[Any] = []
    # torch asks the driver for nothing more, and what it holds in reserve is taken.
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        for size in _BLOCKS:
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        yield
    finally:
        held.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextlib.contextmanager
def _refusing_forward(engine: Any) -> Iterator[None]:
    """A CPU has no such limit: the model itself says what torch would."""
    import torch

    model = engine._scheduler._generator.model
    forward = model.prefill

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")

    model.prefill = refuse
    try:
        yield
    finally:
        model.prefill = forward
