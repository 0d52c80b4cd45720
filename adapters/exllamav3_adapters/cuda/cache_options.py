"""The K/V cache, and the recurrent states beside it, as arguments of exllamav3's `Cache`."""

from __future__ import annotations

from typing import Any, Final

import torch
from exllamav3 import CacheLayer_fp16, CacheLayer_quant

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed

DEFAULT_RECURRENT_SLOTS: Final = 4
"""Sequences that a model with recurrent layers decodes together unless `max_batch_size` says: each takes memory of the
GPU for a whole state, from the load on."""
DEFAULT_SLOTS: Final = 16
"""The same of other models, which keep no state: exllamav3's own default."""


def batch_slots(settings: EngineSettings, model: Any) -> int:
    """Sequences for which recurrent states are allocated, and which the automatic split expects."""
    default = DEFAULT_RECURRENT_SLOTS if is_recurrent(model) else DEFAULT_SLOTS
    return settings.model.max_batch_size or default


def is_recurrent(model: Any) -> bool:
    return bool(model.caps.get("recurrent_states"))


def state_dtype(settings: EngineSettings) -> torch.dtype:
    """Of recurrent states as they are kept; they are computed in 32 bits either way."""
    return torch.float if settings.model.recurrent_state_fp32 else torch.half


def cache_layers(cache_mode: str) -> dict[str, Any]:
    """`cache_mode` is `FP16`, or the bits of keys and values as `k,v`."""
    if cache_mode == "FP16":
        return {"layer_type": CacheLayer_fp16}
    k_bits, v_bits = map(int, cache_mode.split(","))
    return {"layer_type": CacheLayer_quant, "k_bits": k_bits, "v_bits": v_bits}


def history(settings: EngineSettings, model: Any, num_draft_tokens: int) -> int:
    """Tokens by which a recurrent state must be able to go back: all that a step may draft. Raises LoadFailed."""
    asked = settings.model.max_history
    if asked and asked < num_draft_tokens and is_recurrent(model):
        raise LoadFailed(
            f"model.max_history: {asked} tokens are less than the {num_draft_tokens} that are drafted a step; set it "
            f"to {num_draft_tokens} at least, or remove it"
        )
    return max(asked, num_draft_tokens)
