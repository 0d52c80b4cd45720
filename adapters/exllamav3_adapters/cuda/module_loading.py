"""Weights into GPU memory, a module at a time, by exllamav3's own loader."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable
from typing import Any, Final

import torch

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cuda.components import first_line
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.load_thread import LoadStopped, Report

_OUT_OF_MEMORY: Final = ("out of memory", "Insufficient VRAM")
_ASKED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_FREE = re.compile(r"of which ([\d.]+ \w+) is free")


def load_modules(model: Any, what: str, report: Report, *, remedy: str, **arguments: Any) -> None:
    """Runs `Model.load_gen(**arguments)` to its end, with a report before each module. Blocks.

    `what` names the model in the reports and in the error; `remedy` ends the message where memory runs out. Raises
    LoadFailed, and what the report raises; `unload` frees what was loaded by then.
    """
    loader = model.load_gen(**arguments)
    done = total = 0
    try:
        # As in exllamav3's `Model.load`, which cannot be stopped.
        with torch.inference_mode():
            for done, total in loader:
                report(LoadProgress(stage=f"loading {what}", done=done, total=total))
            for host in getattr(model.config, "moe_cpu_hosts", {}).values():
                host.ensure_started()
    except (LoadFailed, LoadStopped):
        raise
    except Exception as error:
        where = f"at module {min(done + 1, total)} of {total}" if total else "before the first module"
        if isinstance(error, NotImplementedError) and arguments.get("tensor_p"):
            raise LoadFailed(f"model.tensor_parallel: exllamav3 cannot load {what} so: {first_line(error)}") from error
        raise _failure(error, what, where, remedy) from error
    finally:
        loader.close()


def warm_up(model: Any, cache: Any, report: Report, *, chunk_size: int, slots: int) -> list[str]:
    """Runs each kind of forward once, so that kernels are compiled and tuned before the first request. Call it before
    a generator owns the cache. Returns what failed; the first request of that kind would fail as well."""

    def count(done: int, total: int) -> None:
        report(LoadProgress(stage="warming up", done=done, total=total))

    failed: list[str] = model.warmup(cache=cache, max_chunk_size=chunk_size, max_batch_size=slots, callback=count)
    return failed


def unload(models: Iterable[Any]) -> None:
    """Frees what the models hold, loaded or half loaded, processes of tensor parallel and of CPU experts included."""
    for model in models:
        if model.mp_children and not model.loaded_tp:  # a tensor parallel load that was cut short
            model.destroy_tp_context()
        model.unload()
    gc.collect()
    torch.cuda.empty_cache()
    for gpu in range(torch.cuda.device_count()):  # a load that was cut short leaves its limit behind
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def missing_memory(error: BaseException) -> str:
    """What torch says was asked for and free, for the middle of a sentence; empty where it does not say."""
    asked, free = _ASKED.search(str(error)), _FREE.search(str(error))
    if asked is None:
        return ""
    return f": {asked[1]} were asked for" + (f" and {free[1]} free" if free else "")


def _failure(error: Exception, what: str, where: str, remedy: str) -> LoadFailed:
    if is_out_of_memory(error):
        return LoadFailed(f"the GPUs' memory ran out {where} of {what}{missing_memory(error)}; {remedy}")
    return LoadFailed(f"model.model_dir: exllamav3 could not load {what} ({where}): {first_line(error)}")
