"""From settings to the parts that the common engine runs on: model, cache, tokenizers, renderer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cpu.model import CpuModel, load_model, make_cache
from exllamav3_adapters.demo_model import model_folder
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.draft_vocabulary import check_draft_vocabulary
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
    draft_model = _draft_model(settings, folder, report)
    model = load_model(folder, report)
    _refuse_drafts_of_states(settings, model, draft_model)
    context = context_length(options, model.context_length)
    tokens = cache_tokens(options, context)
    draft = {}
    if draft_model is not None:
        draft = {"draft_model": draft_model, "draft_cache": _cache(draft_model, tokens, options)}
    return LoadedModel(
        model=model,
        cache=_cache(model, tokens, options),
        tokenizer=make_tokenizer(model.config, folder),
        renderer=make_renderer(model.config, folder, options),
        context_length=context,
        draft=draft,
    )


def _draft_model(settings: EngineSettings, folder: Path, report: Callable[[LoadProgress], None]) -> CpuModel | None:
    draft = settings.draft
    if draft.draft_mode == "mtp":
        raise LoadFailed(
            "draft_model.draft_mode: mtp is not available on engine cpu; use ngram, which drafts from repeated text, "
            "or model with a draft model"
        )
    if draft.draft_mode != "model":
        return None
    if draft.draft_model_dir is None:
        raise LoadFailed("draft_model.draft_model_dir: the folder of the draft model is missing")
    draft_folder = Path(draft.draft_model_dir)
    check_draft_vocabulary(folder, draft_folder)
    try:
        return load_model(draft_folder, report)
    except LoadFailed as error:
        raise LoadFailed(f"the draft model: {error.message}") from error


def _refuse_drafts_of_states(settings: EngineSettings, model: CpuModel, draft_model: CpuModel | None) -> None:
    """A rejected draft takes a recurrent state back, with compiled functions that have no counterpart here."""
    draft = settings.draft
    if draft.draft_mode == "disabled" and not draft.hybrid_draft_tokens:
        return
    option = "draft_mode" if draft.draft_mode != "disabled" else "hybrid_draft_tokens"
    if any(each is not None and each.get_recurrent_layers() for each in (model, draft_model)):
        raise LoadFailed(
            f"draft_model.{option}: engine cpu cannot draft for, or with, a model with recurrent layers; remove the "
            "option"
        )


def _cache(model: CpuModel, tokens: int, options: ModelOptions) -> Any:
    try:
        return make_cache(model, tokens, max_batch_size=options.max_batch_size or DEFAULT_BATCH_SIZE)
    except (MemoryError, RuntimeError) as error:
        raise LoadFailed(f"model.cache_size: no memory for a cache of {tokens} tokens; lower it") from error
