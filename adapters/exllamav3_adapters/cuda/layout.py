"""A model's objects and sizes as the settings lead to them, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exllamav3_adapters.cuda.cache_options import batch_slots, history
from exllamav3_adapters.cuda.components import make_component, read_config
from exllamav3_adapters.cuda.draft import make_draft_model, num_draft_tokens
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.model_sizes import cache_tokens, context_length


@dataclass(frozen=True, kw_only=True)
class Layout:
    """exllamav3's models, not loaded, and the sizes that their caches will have."""

    model: Any
    draft_model: Any | None
    vision: Any | None
    context: int
    """Tokens."""
    cache_tokens: int
    slots: int
    """Sequences that recurrent states are kept for."""
    max_history: int


def lay_out(settings: EngineSettings, folder: Path) -> Layout:
    """Reads configs and headers alone. Raises LoadFailed, which names the option."""
    options = settings.model
    config = read_config(folder, "model.model_dir")
    context = context_length(options, made_for(config))
    tokens = cache_tokens(options, context)
    if options.max_seq_len is not None:
        config.override_dynamic_seq_len(context)  # some models have two sets of RoPE factors, by length
    config.infer_params.moe_cpu_offload = options.moe_cpu_offload
    config.infer_params.moe_cpu_split = options.moe_cpu_split
    model = make_component(config, "text", "model.model_dir")
    draft_model = make_draft_model(settings, config)
    vision = None
    if options.vision:
        vision = make_component(config, "vision", "model.vision")
        _check_drafts_beside_images(settings, draft_model)
    return Layout(
        model=model,
        draft_model=draft_model,
        vision=vision,
        context=context,
        cache_tokens=tokens,
        slots=batch_slots(settings, model),
        max_history=history(settings, model, num_draft_tokens(settings, draft_model)),
    )


def _check_drafts_beside_images(settings: EngineSettings, draft_model: Any | None) -> None:
    """exllamav3 1.6.5 asserts in mid-step that no request has images (`Generator.iterate_draftmodel_gen`), which would
    end all of them."""
    if settings.draft.draft_mode == "model" and draft_model is not None and not draft_model.caps.get("dflash_draft"):
        raise LoadFailed(
            "model.vision: exllamav3 reads no images while such a draft model drafts; set draft_model.draft_mode to "
            "mtp, ngram or disabled, or model.vision to false"
        )


def made_for(config: Any) -> int | None:
    """Tokens, with the factor by which the config stretches its rotary positions. None where it does not say; exllamav3
    has 8,192 there."""
    nested = config.config_dict.get("text_config")
    for section in (config.config_dict, nested if isinstance(nested, dict) else {}):
        if length := section.get("max_position_embeddings"):
            scaling = section.get("rope_scaling") or section.get("rope_parameters") or {}
            factor = scaling.get("factor") or 1.0
            return max(int(length), int(factor * (scaling.get("original_max_position_embeddings") or length)))
    return None
