"""What LiteLLM's model lists tell of a model, in the fields of its price list."""

from __future__ import annotations

from typing import Any

from exllamav3_adapters.contract import EngineInfo
from litellm_exllamav3.gateway_checks import PROVIDER
from litellm_exllamav3.settings import ModelSettings

CARD_OF_ANY_MODEL: dict[str, Any] = {
    "litellm_provider": PROVIDER,
    "mode": "chat",
    "input_cost_per_token": 0.0,
    "output_cost_per_token": 0.0,
    "supports_system_messages": True,
    "supports_response_schema": True,
    "supports_prompt_caching": True,
    "supports_native_streaming": True,
    "supports_assistant_prefill": False,
    "supports_vision": False,
    "supports_audio_input": False,
    "supports_pdf_input": False,
}


def card_from_settings(settings: ModelSettings) -> dict[str, Any]:
    """Before the model is loaded: its context only where the settings name it, and nothing of calls and reasoning."""
    return {
        **CARD_OF_ANY_MODEL,
        **_context(settings.model.max_seq_len),
        "supports_vision": settings.model.vision,
    }


def card_from_engine(info: EngineInfo) -> dict[str, Any]:
    calls = info.tool_format is not None
    return {
        **CARD_OF_ANY_MODEL,
        **_context(min(info.context_length, info.cache_tokens)),
        "supports_function_calling": calls,
        "supports_parallel_function_calling": calls,
        "supports_tool_choice": calls,
        "supports_reasoning": info.has_reasoning,
        "supports_vision": info.reads_images,
    }


def _context(num_tokens: int | None) -> dict[str, int]:
    """Prompt and answer share it."""
    return (
        {} if num_tokens is None else dict.fromkeys(("max_tokens", "max_input_tokens", "max_output_tokens"), num_tokens)
    )
