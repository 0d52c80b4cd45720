"""What of the settings the load itself carried out, for one line in the log. The generator's are told apart from it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, ModelOptions

_MODEL: Final = (
    "cache_mode",
    "recurrent_state_fp32",
    "max_history",
    "gpu_split_auto",
    "autosplit_reserve",
    "gpu_split",
    "tensor_parallel",
    "tensor_parallel_backend",
    "tensor_parallel_moe_split",
    "tensor_parallel_limits",
    "moe_cpu_offload",
    "moe_cpu_split",
    "vision",
)
_DRAFT: Final = ("draft_mode", "draft_model_dir", "draft_cache_mode", "draft_gpu_split")


def effective_options(settings: EngineSettings, ignored: Collection[str]) -> dict[str, str]:
    """Option -> its value and who carries it out, of those that are not at their default. `ignored`: options that have
    no effect on this machine."""
    found = _changed("model", _MODEL, settings.model, ModelOptions(model_dir=""))
    found |= _changed("draft_model", _DRAFT, settings.draft, DraftOptions())
    if settings.loras:
        found["lora.loras"] = ", ".join(f"{lora.folder} x {lora.scaling:g}" for lora in settings.loras)
    return {option: f"{value} (exllamav3)" for option, value in found.items() if option not in ignored}


def _changed(section: str, names: Collection[str], options: Any, defaults: Any) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in names}
    return {
        f"{section}.{name}": list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value != getattr(defaults, name)
    }
