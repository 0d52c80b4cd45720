"""From settings to the parts that the common engine runs on: model, cache, tokenizers, renderer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cpu.model import CpuModel, load_model, make_cache
from exllamav3_adapters.demo_model import demo_model_folder
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.engine import LoadedModel
from exllamav3_adapters.exl3.model_sizes import cache_tokens, context_length
from exllamav3_adapters.exl3.text_parts import make_renderer, make_tokenizer

DEMO = "demo"
DEFAULT_BATCH_SIZE = 16
"""Sequences decoded together. Beyond it a CPU only gets slower for each."""


def with_defaults(settings: EngineSettings) -> EngineSettings:
    """What the CPU engine decides where the user did not."""
    if settings.model.max_batch_size is not None:
        return settings
    model = dataclasses.replace(settings.model, max_batch_size=DEFAULT_BATCH_SIZE)
    return dataclasses.replace(settings, model=model)


def load_parts(settings: EngineSettings, report: Callable[[LoadProgress], None]) -> LoadedModel:
    """Blocks. Call `cpu.install.install` first. Raises LoadFailed, which names the fault."""
    options = settings.model
    folder = demo_model_folder() if options.model_dir == DEMO else Path(options.model_dir)
    model = load_model(folder, report)
    context = context_length(options, model.context_length)
    return LoadedModel(
        model=model,
        cache=_cache(model, cache_tokens(options, context), options),
        tokenizer=make_tokenizer(model.config, folder),
        renderer=make_renderer(model.config, folder, options),
        context_length=context,
    )


def _cache(model: CpuModel, tokens: int, options: ModelOptions) -> Any:
    try:
        return make_cache(model, tokens, max_batch_size=options.max_batch_size or DEFAULT_BATCH_SIZE)
    except (MemoryError, RuntimeError) as error:
        raise LoadFailed(f"model.cache_size: no memory for a cache of {tokens} tokens; lower it") from error
