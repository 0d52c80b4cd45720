"""Which engine has which option. An option that is set on an engine that lacks it fails the load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from exllamav3_adapters.registry import engine_names


@dataclass(frozen=True, slots=True)
class Option:
    """Where an option works, and the value that is as good as leaving it out."""

    off: Any
    engines: tuple[str, ...]
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Engine -> the only other values that it can carry out. An engine that is not named here can do them all."""


_EVERY = ("cpu", "cuda", "fake")
_REAL = ("cpu", "cuda")
"""The fake's model has no recurrent layers, and its scheduler is its own."""
_GPU = ("cuda",)
_SEEING = ("cuda", "fake")

OPTIONS: Mapping[str, Option] = {
    "model.model_dir": Option(None, _EVERY),
    "model.model_name": Option(None, _EVERY),
    "model.max_seq_len": Option(None, _EVERY),
    "model.cache_size": Option(None, _EVERY),
    "model.cache_mode": Option("FP16", _GPU),
    "model.chunk_size": Option(None, _EVERY),
    "model.shared_chunk_size": Option(None, _REAL),
    "model.prefill_cooldown": Option(None, _REAL),
    "model.max_batch_size": Option(None, _EVERY),
    "model.max_history": Option(0, _GPU),
    "model.recurrent_state_fp32": Option(False, _GPU),
    "model.chat_template": Option(None, _EVERY),
    "model.tool_format": Option("auto", _EVERY),
    "model.reasoning": Option("auto", _EVERY),
    "model.reasoning_start_token": Option(None, _EVERY),
    "model.reasoning_end_token": Option(None, _EVERY),
    "model.tensor_parallel": Option(False, _GPU),
    "model.tensor_parallel_backend": Option("native", _GPU),
    "model.tensor_parallel_moe_split": Option(False, _GPU),
    "model.tensor_parallel_limits": Option({}, _GPU),
    "model.gpu_split_auto": Option(True, _GPU),
    "model.autosplit_reserve": Option([96], _GPU),
    "model.gpu_split": Option([], _GPU),
    "model.moe_cpu_offload": Option(0, _GPU),
    "model.moe_cpu_split": Option(0, _GPU),
    "model.vision": Option(False, _SEEING),
    "model.recurrent_frontier_checkpoints": Option(False, _REAL),
    "model.recurrent_eviction": Option("lru", _REAL),
    "model.prefill_cost_coefficients": Option(None, _REAL),
    "memory.sysmem_kv_cache": Option(0, _EVERY),
    "memory.sysmem_recurrent_cache": Option(4096, _REAL),
    "memory.disk_cache_dir": Option(None, _EVERY),
    "memory.disk_cache_size": Option(51200, _EVERY),
    "memory.disk_cache_flush_on_idle": Option(True, _EVERY),
    "memory.disk_cache_checkpoint_interval": Option(4096, _EVERY),
    "memory.disk_cache_write_interval": Option(2, _EVERY),
    "memory.recurrent_checkpoint_interval": Option(None, _REAL),
    "memory.recurrent_checkpoint_interval_pp": Option(32768, _REAL),
    "memory.pin_max_fraction": Option(0.5, _EVERY),
    "memory.warm_prefixes": Option([], _EVERY),
    "memory.warm_prefix_token_ids": Option([], _EVERY),
    "memory.warm_prompts": Option([], _EVERY),
    "memory.warm_prefix_max_tokens": Option(None, _EVERY),
    "memory.aging_lfu": Option(False, _EVERY),
    "memory.aging_half_life_hours": Option(1, _EVERY),
    "memory.aging_share": Option(0.03, _EVERY),
    "memory.aging_hit_cap_pages": Option(64, _EVERY),
    "memory.aging_weight_cap": Option(0, _EVERY),
    "memory.aging_persist_dir": Option(None, _EVERY),
    "memory.aging_capture_prefixes": Option(False, _EVERY),
    "memory.aging_prefix_min_tokens": Option(512, _EVERY),
    "memory.aging_prefix_max_tokens": Option(32768, _EVERY),
    "memory.aging_prefix_max_entries": Option(64, _EVERY),
    "draft_model.draft_model_dir": Option(None, _REAL),
    "draft_model.draft_model_name": Option(None, _REAL),
    "draft_model.draft_mode": Option("disabled", _REAL, {"cpu": ("ngram", "model")}),
    "draft_model.draft_num_tokens": Option(None, _REAL),
    "draft_model.dynamic_draft": Option(False, _REAL),
    "draft_model.hybrid_draft_tokens": Option(0, _REAL),
    "draft_model.ngram_match_min": Option(2, _REAL),
    "draft_model.draft_cache_mode": Option("FP16", _GPU),
    "draft_model.draft_gpu_split": Option([], _GPU),
    "images.max_mebibytes": Option(20, _SEEING),
    "images.max_pixels": Option(50_000_000, _SEEING),
    "images.max_images": Option(32, _SEEING),
    "images.cache_mebibytes": Option(512, _SEEING),
    "images.allowed_folders": Option([], _SEEING),
    "lora.lora_dir": Option(None, _GPU),
    "lora.loras": Option([], _GPU),
}
"""Every option that an engine carries out, as `section.option`."""


def unavailable(model: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What of one model's section its engine cannot do: (path below the model, what to do about it).

    Works on what the user wrote, before validation, so that these faults stand beside all others. Engines and
    options that do not exist are left to validation.
    """
    engine = model.get("engine")
    if engine not in engine_names():
        return
    for name, option in OPTIONS.items():
        section_name, _, option_name = name.partition(".")
        section = model.get(section_name)
        if not isinstance(section, Mapping) or option_name not in section:
            continue
        value, values = section[option_name], option.values.get(engine, ())
        if (engine in option.engines and not values) or any(_same(value, known) for known in (option.off, *values)):
            continue
        yield (section_name, option_name), f"not available on engine {engine}; {_remedy(option.off, values)}"


def _same(value: Any, known: Any) -> bool:
    """Whether they are the same value, also where one came from the environment as text."""
    if isinstance(value, str) and not isinstance(known, list | dict):
        return value.strip().lower() == str(known).lower()
    return bool(value == known)


def _remedy(off: Any, values: tuple[Any, ...]) -> str:
    if off is None or isinstance(off, list | dict):
        return "remove it"
    known = [str(value).lower() if isinstance(value, bool) else str(value) for value in (off, *values)]
    return f"remove it or set it to {' or '.join(known)}"
