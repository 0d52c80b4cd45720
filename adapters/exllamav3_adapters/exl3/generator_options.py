"""Which arguments the generator gets, and whether the installed one knows them."""

from __future__ import annotations

import inspect
from typing import Any

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed

MEBIBYTE = 1024 * 1024


def generator_options(settings: EngineSettings, generator_class: Any) -> dict[str, Any]:
    """Keyword arguments for exllamav3's `Generator`.

    `Generator.__init__` ends in `**kwargs` and swallows what it does not know (checked on 1.4.1 and 1.6.5), so every
    name is looked up in its signature first. Raises LoadFailed that names the option of an engine too old for it.
    """
    options = {argument: value for _, argument, value in _passed_through(settings)}
    known = inspect.signature(generator_class.__init__).parameters
    unknown = [option for option, argument, _ in _passed_through(settings) if argument not in known]
    if unknown:
        raise LoadFailed(
            f"the installed exllamav3 does not know {', '.join(unknown)}; install exllamav3 1.6.5 or remove the option"
        )
    return options


def effective_settings(settings: EngineSettings) -> dict[str, str]:
    """Option -> its value and who carries it out, for one line in the log."""
    by_the_engine = {option: f"{value} (exllamav3)" for option, _, value in _passed_through(settings)}
    return {**by_the_engine, "memory.pin_max_fraction": f"{settings.memory.pin_max_fraction} (ours)"}


def _passed_through(settings: EngineSettings) -> list[tuple[str, str, Any]]:
    """(our option, the generator's argument, value in the generator's unit) of every option that is set."""
    model, memory = settings.model, settings.memory
    options: list[tuple[str, str, Any]] = [("model.chunk_size", "max_chunk_size", model.chunk_size)]
    if model.max_batch_size is not None:
        options.append(("model.max_batch_size", "max_batch_size", model.max_batch_size))
    if memory.sysmem_kv_cache:
        options.append(("memory.sysmem_kv_cache", "cpu_cache_size", memory.sysmem_kv_cache * MEBIBYTE))
    if memory.disk_cache_dir is not None:
        options += [
            ("memory.disk_cache_dir", "disk_cache_dir", memory.disk_cache_dir),
            ("memory.disk_cache_size", "disk_cache_size", memory.disk_cache_size * MEBIBYTE),
            ("memory.disk_cache_flush_on_idle", "disk_cache_flush_on_idle", memory.disk_cache_flush_on_idle),
            (
                "memory.disk_cache_checkpoint_interval",
                "disk_cache_checkpoint_interval",
                memory.disk_cache_checkpoint_interval,
            ),
            ("memory.disk_cache_write_interval", "disk_cache_write_interval", memory.disk_cache_write_interval),
        ]
    return options
