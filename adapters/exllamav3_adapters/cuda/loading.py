"""From settings to the parts that the common engine runs on, in exllamav3's own order of loading.

Everything that can be refused is refused before the first weight is read: configs, sizes, tokenizer and template.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exllamav3 import Cache

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cuda.cache_options import cache_layers, state_dtype
from exllamav3_adapters.cuda.components import first_line
from exllamav3_adapters.cuda.effective_options import effective_options
from exllamav3_adapters.cuda.layout import lay_out
from exllamav3_adapters.cuda.lora import check_loras, load_loras
from exllamav3_adapters.cuda.module_loading import load_modules, unload, warm_up
from exllamav3_adapters.cuda.split_options import component_split, draft_split, main_split, options_of_several_gpus
from exllamav3_adapters.demo_model import model_folder
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.engine import LoadedModel
from exllamav3_adapters.exl3.text_parts import make_renderer, make_tokenizer
from exllamav3_adapters.load_thread import Report

log = logging.getLogger(__name__)

_LESS_CACHE = (
    "lower model.cache_size or model.max_batch_size, set model.cache_mode to fewer bits, or give the load more memory "
    "with model.gpu_split or a smaller model.autosplit_reserve"
)
_LESS_DRAFT = "lower model.cache_size, which the draft model's cache has too, or set draft_model.draft_mode to ngram"


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """exllamav3's objects before their weights are loaded: the caches are attached to their models by then, since the
    loader allocates both."""

    model: Any
    cache: Any
    draft_model: Any | None
    draft_cache: Any | None
    vision: Any | None
    slots: int
    context: int

    @property
    def models(self) -> list[Any]:
        """In the order in which they are unloaded."""
        return [model for model in (self.model, self.draft_model, self.vision) if model is not None]


def load_parts(settings: EngineSettings, report: Report, num_gpus: int) -> LoadedModel:
    """Blocks. Raises LoadFailed, which names the fault, and what `report` raises: nothing stays allocated then."""
    folder = model_folder(settings.model.model_dir)
    report(LoadProgress(stage="reading the configuration", done=0, total=1))
    check_loras(settings)
    _warn_of_one_gpu(settings, num_gpus)
    parts = _make_parts(settings, folder)
    # Before the weights: a folder without a usable tokenizer or template should not take minutes to refuse.
    tokenizer = make_tokenizer(parts.model.config, folder)
    renderer = make_renderer(parts.model.config, folder, settings.model)
    try:
        _load_weights(settings, parts, report, num_gpus)
        load_loras(settings, parts.model)
        _warm_up(settings, parts, report)
    except BaseException:
        unload(parts.models)
        raise
    return LoadedModel(
        model=parts.model,
        cache=parts.cache,
        tokenizer=tokenizer,
        renderer=renderer,
        context_length=parts.context,
        draft=_draft_arguments(parts),
        vision=parts.vision,
        effective_settings=effective_options(settings, options_of_several_gpus(settings) if num_gpus == 1 else ()),
        release=lambda: unload(parts.models),
    )


def _make_parts(settings: EngineSettings, folder: Path) -> _Parts:
    layout = lay_out(settings, folder)
    size = {
        "max_num_tokens": layout.cache_tokens,
        "max_batch_size": layout.slots,
        "max_history": layout.max_history,
        "recurrent_dtype": state_dtype(settings),
    }
    cache = _make_cache(layout.model, "model.cache_mode", settings.model.cache_mode, size)
    draft_cache = None
    if layout.draft_model is not None:
        mode = settings.draft.draft_cache_mode
        draft_cache = _make_cache(layout.draft_model, "draft_model.draft_cache_mode", mode, size)
    return _Parts(
        model=layout.model,
        cache=cache,
        draft_model=layout.draft_model,
        draft_cache=draft_cache,
        vision=layout.vision,
        slots=layout.slots,
        context=layout.context,
    )


def _make_cache(model: Any, option: str, mode: str, size: dict[str, Any]) -> Any:
    try:
        return Cache(model, **size, **cache_layers(mode))
    except Exception as error:  # assertions of the layer types
        raise LoadFailed(f"{option}: {mode} does not fit the model: {first_line(error)}") from error


def _load_weights(settings: EngineSettings, parts: _Parts, report: Report, num_gpus: int) -> None:
    """The model last: its automatic split has to see what the others take."""
    sizes = {"max_chunk_size": settings.model.chunk_size, "max_batch_size": parts.slots}
    split = main_split(settings.model, num_gpus) | sizes
    if parts.vision is not None:
        beside = component_split(settings.model, num_gpus) | sizes
        load_modules(parts.vision, "the vision component", report, remedy="set model.vision to false", **beside)
    if parts.draft_model is not None:
        beside = draft_split(settings, num_gpus) | sizes
        load_modules(parts.draft_model, "the draft model", report, remedy=_LESS_DRAFT, **beside)
        split["draft_model"] = parts.draft_model
    load_modules(parts.model, "the model", report, remedy=_LESS_CACHE, **split)


def _warm_up(settings: EngineSettings, parts: _Parts, report: Report) -> None:
    failed = warm_up(parts.model, parts.cache, report, chunk_size=settings.model.chunk_size, slots=parts.slots)
    if failed:
        log.warning("%s: these passes failed while warming up: %s", settings.model_key, "; ".join(failed))


def _draft_arguments(parts: _Parts) -> dict[str, Any]:
    if parts.draft_model is None:
        return {}
    return {"draft_model": parts.draft_model, "draft_cache": parts.draft_cache}


def _warn_of_one_gpu(settings: EngineSettings, num_gpus: int) -> None:
    if num_gpus == 1 and (names := options_of_several_gpus(settings)):
        log.warning("%s: there is one GPU, so %s has no effect", settings.model_key, ", ".join(names))
