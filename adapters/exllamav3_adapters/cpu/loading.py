"""From settings to the parts that the common engine runs on: model, cache, tokenizers, renderer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cpu.model import CpuModel, load_model, make_cache
from exllamav3_adapters.demo_model import model_folder
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.engine import LoadedModel
from exllamav3_adapters.exl3.model_sizes import cache_tokens, context_length
from exllamav3_adapters.exl3.text_parts import make_renderer, make_tokenizer

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
    folder = model_folder(options.model_dir)
    _refuse_draft_model(settings)
    model = load_model(folder, report)
    _refuse_drafts_of_states(settings, model)
    context = context_length(options, model.context_length)
    return LoadedModel(
        model=model,
        cache=_cache(model, cache_tokens(options, context), options),
        tokenizer=make_tokenizer(model.config, folder),
        renderer=make_renderer(model.config, folder, options),
        context_length=context,
    )


def _refuse_draft_model(settings: EngineSettings) -> None:
    if settings.draft.draft_mode in ("model", "mtp"):
        raise LoadFailed(
            f"draft_model.draft_mode: {settings.draft.draft_mode} is not available on engine cpu; use ngram, which "
            "drafts from repeated text"
        )


def _refuse_drafts_of_states(settings: EngineSettings, model: CpuModel) -> None:
    """A rejected draft takes a recurrent state back, with compiled functions that have no counterpart here."""
    draft = settings.draft
    if model.get_recurrent_layers() and (draft.draft_mode != "disabled" or draft.hybrid_draft_tokens):
        option = "draft_mode" if draft.draft_mode != "disabled" else "hybrid_draft_tokens"
        raise LoadFailed(
            f"draft_model.{option}: engine cpu cannot draft for a model with recurrent layers; remove the option"
        )


def _cache(model: CpuModel, tokens: int, options: ModelOptions) -> Any:
    try:
        return make_cache(model, tokens, max_batch_size=options.max_batch_size or DEFAULT_BATCH_SIZE)
    except (MemoryError, RuntimeError) as error:
        raise LoadFailed(f"model.cache_size: no memory for a cache of {tokens} tokens; lower it") from error
