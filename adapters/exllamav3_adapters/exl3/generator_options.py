"""Which arguments the generator gets, and whether the installed one knows them."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import LoadFailed

MEBIBYTE = 1024 * 1024
AGING = "aging_lfu"
"""exllamav3's pull request names the policy and its options as our settings do, in the same units."""
FRONTIERS = "recurrent_frontier_checkpoints"
EVICTION = "recurrent_eviction"
COST = "prefill_cost_coefficients"
_DEFAULTS = MemoryOptions()


def generator_options(settings: EngineSettings, generator_class: Any, *, is_hybrid: bool = False) -> dict[str, Any]:
    """Keyword arguments for exllamav3's `Generator`. Those for recurrent layers are left out where the model has none.

    `Generator.__init__` ends in `**kwargs` and swallows what it does not know (checked on 1.4.1 and 1.6.5), so every
    name is looked up in its signature first. Raises LoadFailed that names the option of an engine too old for it.
    """
    known = _arguments_of(generator_class)
    _check_chunks(settings.model)
    passed_through = _passed_through(settings, known, is_hybrid)
    unknown = [option for option, argument, _ in passed_through if argument not in known]
    if unknown:
        raise LoadFailed(
            f"the installed exllamav3 does not know {', '.join(unknown)}; install exllamav3 1.6.5 or remove the option"
        )
    return {argument: value for _, argument, value in passed_through}


def aging_is_ours(settings: EngineSettings, generator_class: Any) -> bool:
    """Whether `aging_lfu` is set and left to us, since the installed generator has no such policy of its own."""
    return settings.memory.aging_lfu and AGING not in _arguments_of(generator_class)


def frontiers_are_ours(settings: EngineSettings, generator_class: Any) -> bool:
    """As `aging_is_ours`, for checkpoints inside pages. Of no meaning where the model has no recurrent layers."""
    return settings.model.recurrent_frontier_checkpoints and FRONTIERS not in _arguments_of(generator_class)


def gds_is_ours(settings: EngineSettings, generator_class: Any) -> bool:
    """As `aging_is_ours`, for the order of checkpoints. Of no meaning where the model has no recurrent layers."""
    return settings.model.recurrent_eviction == "gds" and EVICTION not in _arguments_of(generator_class)


def options_without_effect(settings: EngineSettings) -> list[str]:
    """Options that are set and that only a model with recurrent layers has a use for."""
    defaults = ModelOptions(model_dir="")
    names = (FRONTIERS, EVICTION, COST)
    return [f"model.{name}" for name in names if getattr(settings.model, name) != getattr(defaults, name)]


def effective_settings(settings: EngineSettings, generator_class: Any, *, is_hybrid: bool = False) -> dict[str, str]:
    """Option -> its value and who carries it out, for one line in the log."""
    passed_through = _passed_through(settings, _arguments_of(generator_class), is_hybrid)
    by_the_engine = {option: f"{value} (exllamav3)" for option, _, value in passed_through}
    ours: dict[str, Any] = {"memory.pin_max_fraction": settings.memory.pin_max_fraction}
    if is_hybrid and frontiers_are_ours(settings, generator_class):
        ours[f"model.{FRONTIERS}"] = True
    if is_hybrid and gds_is_ours(settings, generator_class):
        coefficients = settings.model.prefill_cost_coefficients
        ours[f"model.{EVICTION}"] = settings.model.recurrent_eviction
        ours[f"model.{COST}"] = "measured" if coefficients is None else list(coefficients)
    if aging_is_ours(settings, generator_class):
        ours |= {f"memory.{name}": value for name, value in _aging_options(settings.memory).items()}
    return by_the_engine | {option: f"{value} (ours)" for option, value in ours.items()}


def _check_chunks(model: ModelOptions) -> None:
    """The engine's default of one may be less than what the user made the other."""
    if model.shared_chunk_size is not None and model.shared_chunk_size > model.chunk_size:
        raise LoadFailed(
            f"model.shared_chunk_size: {model.shared_chunk_size} is more than model.chunk_size ({model.chunk_size}); "
            f"lower it, or set model.chunk_size to {model.shared_chunk_size}"
        )


def _arguments_of(generator_class: Any) -> Collection[str]:
    return inspect.signature(generator_class.__init__).parameters


def _aging_options(memory: MemoryOptions) -> dict[str, Any]:
    """Those that have an effect, by name."""
    return {
        field.name: getattr(memory, field.name)
        for field in fields(memory)
        if field.name.startswith("aging_")
        and getattr(memory, field.name) is not None
        and (memory.aging_capture_prefixes or not field.name.startswith("aging_prefix_"))
    }


def _passed_through(settings: EngineSettings, known: Collection[str], is_hybrid: bool) -> list[tuple[str, str, Any]]:
    """(our option, the generator's argument, value in the generator's unit) of every option that is set."""
    model, memory = settings.model, settings.memory
    options: list[tuple[str, str, Any]] = [("model.chunk_size", "max_chunk_size", model.chunk_size)]
    if model.shared_chunk_size is not None:
        options.append(("model.shared_chunk_size", "shared_chunk_size", model.shared_chunk_size))
    if model.prefill_cooldown is not None:
        options.append(("model.prefill_cooldown", "prefill_cooldown", model.prefill_cooldown))
    if model.max_batch_size is not None:
        options.append(("model.max_batch_size", "max_batch_size", model.max_batch_size))
    if memory.sysmem_kv_cache:
        options.append(("memory.sysmem_kv_cache", "cpu_cache_size", memory.sysmem_kv_cache * MEBIBYTE))
    if is_hybrid:
        options.append(
            ("memory.sysmem_recurrent_cache", "recurrent_cache_size", memory.sysmem_recurrent_cache * MEBIBYTE)
        )
        options += [
            (f"memory.{name}", name, getattr(memory, name))
            for name in ("recurrent_checkpoint_interval", "recurrent_checkpoint_interval_pp")
            if getattr(memory, name) != getattr(_DEFAULTS, name)
        ]
        if model.recurrent_frontier_checkpoints and FRONTIERS in known:
            options.append((f"model.{FRONTIERS}", FRONTIERS, True))
        if model.recurrent_eviction == "gds" and EVICTION in known:
            options.append((f"model.{EVICTION}", EVICTION, model.recurrent_eviction))
            if model.prefill_cost_coefficients is not None:
                options.append((f"model.{COST}", COST, list(model.prefill_cost_coefficients)))
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
    if memory.aging_lfu and AGING in known:
        # An option that only we have, or that its version lacks, is missed only where it was set.
        options += [
            (f"memory.{name}", name, value)
            for name, value in _aging_options(memory).items()
            if name in known or value != getattr(_DEFAULTS, name)
        ]
    return options + _draft_options(settings.draft)


def _draft_options(draft: DraftOptions) -> list[tuple[str, str, Any]]:
    """Those of the mode that is set: a draft model and its cache are arguments of their own (`LoadedModel.draft`)."""
    options: list[tuple[str, str, Any]] = []
    if draft.draft_mode == "ngram":
        options.append(("draft_model.ngram_match_min", "ngram_match_min", draft.ngram_match_min))
    if draft.draft_mode != "disabled" and draft.draft_num_tokens is not None:
        options.append(("draft_model.draft_num_tokens", "num_draft_tokens", draft.draft_num_tokens))
    if draft.draft_mode in ("model", "mtp") and draft.dynamic_draft:
        options.append(("draft_model.dynamic_draft", "dynamic_draft_tokens", True))
    if draft.hybrid_draft_tokens:
        options.append(("draft_model.hybrid_draft_tokens", "hybrid_draft_tokens", draft.hybrid_draft_tokens))
    return options
