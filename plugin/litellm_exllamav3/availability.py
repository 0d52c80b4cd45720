"""Which engine has which option by now. An option that is set on an engine that lacks it fails the load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from exllamav3_adapters.registry import engine_names

ENGINES_TO_COME: Mapping[str, str] = {
    "cuda": "engine cuda is not there yet: this release has no engine for GPUs. Use engine: cpu",
}


@dataclass(frozen=True, slots=True)
class Option:
    """Where an option works, and the value that is as good as leaving it out."""

    off: Any
    engines: tuple[str, ...] = ()


_SERVING = ("cpu", "fake")
_REAL = ("cpu",)
"""The fake's model has no recurrent layers."""

OPTIONS: Mapping[str, Option] = {
    "model.model_dir": Option(None, _SERVING),
    "model.model_name": Option(None, _SERVING),
    "model.max_seq_len": Option(None, _SERVING),
    "model.cache_size": Option(None, _SERVING),
    "model.cache_mode": Option("FP16"),
    "model.chunk_size": Option(None, _SERVING),
    "model.shared_chunk_size": Option(None),
    "model.prefill_cooldown": Option(None),
    "model.max_batch_size": Option(None, _SERVING),
    "model.max_history": Option(0),
    "model.chat_template": Option(None, _SERVING),
    "model.tool_format": Option("auto", _SERVING),
    "model.reasoning": Option("auto", _SERVING),
    "model.reasoning_start_token": Option(None, _SERVING),
    "model.reasoning_end_token": Option(None, _SERVING),
    "model.tensor_parallel": Option(False),
    "model.tensor_parallel_backend": Option("native"),
    "model.gpu_split_auto": Option(True),
    "model.autosplit_reserve": Option([96]),
    "model.gpu_split": Option([]),
    "model.moe_cpu_offload": Option(0),
    "model.moe_cpu_split": Option(0),
    "model.vision": Option(False),
    "model.recurrent_frontier_checkpoints": Option(False, _REAL),
    "model.recurrent_eviction": Option("lru", _REAL),
    "model.prefill_cost_coefficients": Option(None, _REAL),
    "memory.sysmem_kv_cache": Option(0, _SERVING),
    "memory.sysmem_recurrent_cache": Option(4096, _REAL),
    "memory.disk_cache_dir": Option(None, _SERVING),
    "memory.disk_cache_size": Option(51200, _SERVING),
    "memory.disk_cache_flush_on_idle": Option(True, _SERVING),
    "memory.disk_cache_checkpoint_interval": Option(4096, _SERVING),
    "memory.disk_cache_write_interval": Option(2, _SERVING),
    "memory.recurrent_checkpoint_interval": Option(None),
    "memory.recurrent_checkpoint_interval_pp": Option(32768),
    "memory.pin_max_fraction": Option(0.5, _SERVING),
    "memory.warm_prefixes": Option([], _SERVING),
    "memory.warm_prefix_token_ids": Option([], _SERVING),
    "memory.warm_prompts": Option([], _SERVING),
    "memory.warm_prefix_max_tokens": Option(None, _SERVING),
    "memory.aging_lfu": Option(False, _SERVING),
    "memory.aging_half_life_hours": Option(1, _SERVING),
    "memory.aging_share": Option(0.03, _SERVING),
    "memory.aging_hit_cap_pages": Option(64, _SERVING),
    "memory.aging_weight_cap": Option(0, _SERVING),
    "memory.aging_persist_dir": Option(None, _SERVING),
    "memory.aging_capture_prefixes": Option(False, _SERVING),
    "memory.aging_prefix_min_tokens": Option(512, _SERVING),
    "memory.aging_prefix_max_tokens": Option(32768, _SERVING),
    "memory.aging_prefix_max_entries": Option(64, _SERVING),
    "draft_model.draft_model_dir": Option(None),
    "draft_model.draft_model_name": Option(None),
    "draft_model.draft_mode": Option("disabled"),
    "draft_model.draft_num_tokens": Option(None),
    "draft_model.dynamic_draft": Option(False),
    "draft_model.hybrid_draft_tokens": Option(0),
    "draft_model.ngram_match_min": Option(2),
    "draft_model.draft_cache_mode": Option("FP16"),
    "draft_model.draft_gpu_split": Option([]),
    "lora.lora_dir": Option(None),
    "lora.loras": Option([]),
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
    if engine in ENGINES_TO_COME:
        yield ("engine",), ENGINES_TO_COME[engine]
        return
    for name, option in OPTIONS.items():
        section_name, _, option_name = name.partition(".")
        section = model.get(section_name)
        if not isinstance(section, Mapping) or option_name not in section or engine in option.engines:
            continue
        if not _same(section[option_name], option.off):
            yield (section_name, option_name), f"not available yet on engine {engine}; {_remedy(option.off)}"


def _same(value: Any, off: Any) -> bool:
    """Whether the value is the off value, also where it came from the environment as text."""
    if isinstance(value, str) and not isinstance(off, list):
        return value.strip().lower() == str(off).lower()
    return bool(value == off)


def _remedy(off: Any) -> str:
    if off is None or isinstance(off, list):
        return "remove it"
    return f"remove it or set it to {str(off).lower() if isinstance(off, bool) else off}"
