"""The section `exllamav3_settings`, validated. `config_file.load_settings` reads it from a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.registry import engine_names
from litellm_exllamav3.capture_section import CaptureSection
from litellm_exllamav3.memory_section import HALF_LIFE_WARNING_HOURS, MemorySection, WarmPrompt
from litellm_exllamav3.model_section import DEMO_MODEL, DraftModelSection, Lora, LoraSection, ModelSection
from litellm_exllamav3.section import ConfigPath, Count, Real, Section

__all__ = [
    "DEMO_MODEL",
    "CaptureSection",
    "DraftModelSection",
    "Lora",
    "LoraSection",
    "MemorySection",
    "ModelSection",
    "ModelSettings",
    "Settings",
    "WarmPrompt",
]

HIJACKED_NAMES = ("replicate", "clarifai", "ft:babbage-002", "ft:davinci-002", "ft:gpt-3.5-turbo")
"""LiteLLM 1.108.7 looks for these anywhere in a model's name before it asks for the provider (`litellm/main.py`,
`completion`), and would send the request, prompt included, to another company. Its lists of whole names that it treats
so (Replicate, Petals, Snowflake, OVHcloud) hold only names with a slash, which a key may not have."""


def _model_key(key: str) -> str:
    for name in HIJACKED_NAMES:
        if name in key:
            raise ValueError(f"LiteLLM sends every model with {name!r} in its name to another provider; rename it")
    if "/" in key:
        raise ValueError("has a slash, and LiteLLM takes some such names for another provider's; use a - instead")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:+@-]*", key):
        raise ValueError("should begin with a letter or digit and hold only letters, digits and . _ : + @ -")
    return key


_LONG_HALF_LIFE = (
    f"above {HALF_LIFE_WARNING_HOURS} dead prompts outlive live ones: on agent traffic 1 to 5 minutes is best, and an "
    "hour or more lost up to 45 points of hit rate; try 0.05"
)

ModelKey = Annotated[str, AfterValidator(_model_key)]
"""The name after `exllamav3/` in `model_list`."""


class ModelSettings(Section):
    """One model that the gateway serves."""

    engine: str = Field(description="What runs the model: `cpu`, `cuda`, or `fake` (canned answers, for tests).")
    load: Literal["startup", "lazy"] = Field(
        default="startup", description="Load when the proxy starts, or at the first request (`lazy`)."
    )
    replay: bool = Field(
        default=True,
        description="After each load, prefill the captured heads while no request runs. Configured prefixes are "
        "prefilled in any case.",
    )
    max_queue: Count = Field(
        default=64, description="Requests that may wait; the next one gets 429 with `retry-after`."
    )
    request_timeout_seconds: Real = Field(
        default=600.0,
        ge=0.001,
        description="Seconds for a request in all, waiting for the model to load included.",
    )
    model: ModelSection = Field(description="Which model, and how it is laid out.")
    memory: MemorySection = Field(default=MemorySection(), description="Tiers, eviction and warm prefixes.")
    draft_model: DraftModelSection = Field(default=DraftModelSection(), description="Speculative decoding.")
    lora: LoraSection = Field(default=LoraSection(), description="LoRA adapters.")
    capture: CaptureSection = Field(default=CaptureSection(), description="Which heads are kept for replay.")

    @field_validator("engine")
    @classmethod
    def _registered(cls, value: str) -> str:
        if value not in engine_names():
            raise ValueError(f"no such engine; use one of {', '.join(engine_names())}")
        return value

    def engine_settings(self, key: str) -> EngineSettings:
        """What the engine is told, for the model under this key: defaults worked out, paths absolute."""
        resolved = {
            "model_dir": self.model.folder,
            "cache_size": self.model.cache_tokens,
            "chunk_size": self.model.chunk_tokens(self.engine),
        }
        return EngineSettings(
            model_key=key,
            model=ModelOptions(**{**_shared(self.model, ModelOptions), **resolved}),
            memory=MemoryOptions(**_shared(self.memory, MemoryOptions)),
        )

    def warnings(self) -> Iterator[tuple[str, str]]:
        """What works but is probably not meant: (option, what to do about it)."""
        model, memory, capture = self.model, self.memory, self.capture
        if memory.aging_lfu and memory.aging_half_life_hours > HALF_LIFE_WARNING_HOURS:
            yield "memory.aging_half_life_hours", _LONG_HALF_LIFE
        if not memory.aging_lfu and (names := memory.aging_options()):
            yield "memory.aging_lfu", f"is false, so {', '.join(names)} have no effect"
        if model.recurrent_frontier_checkpoints and not memory.sysmem_kv_cache:
            yield (
                "model.recurrent_frontier_checkpoints",
                "with memory.sysmem_kv_cache 0 only page-aligned checkpoints can be kept; give it some MiB",
            )
        if model.gpu_split and "gpu_split_auto" in model.model_fields_set and model.gpu_split_auto:
            yield "model.gpu_split_auto", "has no effect beside gpu_split; remove one of them"
        if capture.max_entries_per_key > capture.max_entries:
            yield "capture.max_entries_per_key", "is more than max_entries, so one API key can take all of them"


class Settings(Section):
    """Everything under `exllamav3_settings`."""

    state_dir: ConfigPath = Field(
        default="state",
        validate_default=True,
        description="Folder for what is kept over restarts, relative to the config file; made readable by its owner "
        "only.",
    )
    models: dict[ModelKey, ModelSettings] = Field(
        min_length=1, description="The models, by the name after `exllamav3/` in `model_list`."
    )


def _shared(section: Section, options: type[ModelOptions] | type[MemoryOptions]) -> dict[str, Any]:
    return {field.name: getattr(section, field.name) for field in fields(options)}
