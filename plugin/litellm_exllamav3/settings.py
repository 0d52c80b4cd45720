"""The section `exllamav3_settings`, validated. `config_file.load_settings` reads it from a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from exllamav3_adapters.engine_settings import (
    DraftOptions,
    EngineSettings,
    ImageOptions,
    LoraOptions,
    MemoryOptions,
    ModelOptions,
)
from exllamav3_adapters.registry import engine_names
from litellm_exllamav3.capture_section import CaptureSection
from litellm_exllamav3.images_section import ImagesSection
from litellm_exllamav3.memory_section import HALF_LIFE_WARNING_HOURS, SHARE_WARNING, MemorySection, WarmPrompt
from litellm_exllamav3.model_section import DEMO_MODEL, DraftModelSection, Lora, LoraSection, ModelSection
from litellm_exllamav3.sampling_section import SamplingSection
from litellm_exllamav3.section import ConfigPath, Count, Real, Section

__all__ = [
    "DEMO_MODEL",
    "CaptureSection",
    "DraftModelSection",
    "ImagesSection",
    "Lora",
    "LoraSection",
    "MemorySection",
    "ModelSection",
    "ModelSettings",
    "Settings",
    "WarmPrompt",
]

CREDITS_FOLDER = "credits"
"""In `state_dir`: the page credit of all models, unless a model says where."""

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
    "credit outlives the prompts that earned it: on the traces 4 to 24 hours cost up to 0.09 points of token hit rate "
    "at the default share, and 1 hour over the whole cache (aging_share 1) up to 33; try "
    f"{HALF_LIFE_WARNING_HOURS:g} or less"
)
_LARGE_SHARE = (
    "leaves less to recency than the traces want: measured over them, 0.1 of the cache costs up to 2.5 points of token "
    f"hit rate, 0.2 up to 6 and 1 up to 33; try {SHARE_WARNING:g} or less"
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
    images: ImagesSection = Field(
        default=ImagesSection(), description="Which images the model takes, with `model.vision`."
    )
    capture: CaptureSection = Field(default=CaptureSection(), description="Which heads are kept for replay.")
    sampling: SamplingSection = Field(
        default=SamplingSection(), description="What a request is sampled with where it does not say."
    )

    @field_validator("engine")
    @classmethod
    def _registered(cls, value: str) -> str:
        if value not in engine_names():
            raise ValueError(f"no such engine; use one of {', '.join(engine_names())}")
        return value

    def engine_settings(self, key: str, credits_dir: str | None = None) -> EngineSettings:
        """What the engine is told, for the model under this key: defaults worked out, paths absolute.

        `credits_dir`: where credit is kept unless the section says where; None: nowhere.
        """
        model = {
            "model_dir": self.model.folder,
            "cache_size": self.model.cache_tokens,
            "chunk_size": self.model.chunk_tokens(self.engine),
        }
        memory = {
            "aging_persist_dir": self.persist_dir(credits_dir),
            "aging_capture_prefixes": self.collects_prefixes,
        }
        return EngineSettings(
            model_key=key,
            model=ModelOptions(**{**_shared(self.model, ModelOptions), **model}),
            memory=MemoryOptions(**{**_shared(self.memory, MemoryOptions), **memory}),
            draft=DraftOptions(
                **{**_shared(self.draft_model, DraftOptions), "draft_model_dir": self.draft_model.folder}
            ),
            loras=tuple(
                LoraOptions(folder=str(Path(self.lora.lora_dir or "") / lora.name), scaling=lora.scaling)
                for lora in self.lora.loras
            ),
            images=ImageOptions(**_shared(self.images, ImageOptions)),
        )

    def persist_dir(self, credits_dir: str | None) -> str | None:
        """Where credit is kept over restarts. None: it is not."""
        return (self.memory.aging_persist_dir or credits_dir) if self.memory.aging_lfu else None

    @property
    def collects_prefixes(self) -> bool:
        """Whether the engine records prefixes: never of a model whose prompts are to leave nothing behind."""
        return self.memory.aging_lfu and self.memory.aging_capture_prefixes and self.capture.enabled

    def warnings(self) -> Iterator[tuple[str, str]]:
        """What works but is probably not meant: (option, what to do about it)."""
        model, memory, capture = self.model, self.memory, self.capture
        if memory.aging_lfu and memory.aging_half_life_hours > HALF_LIFE_WARNING_HOURS:
            yield "memory.aging_half_life_hours", _LONG_HALF_LIFE
        if memory.aging_lfu and memory.aging_share > SHARE_WARNING:
            yield "memory.aging_share", _LARGE_SHARE
        if memory.aging_lfu and not capture.enabled:
            yield "memory.aging_lfu", "with capture.enabled false no request earns credit, so that only recency counts"
        if not memory.aging_lfu and (names := memory.aging_options()):
            yield "memory.aging_lfu", f"is false, so {', '.join(names)} have no effect"
        if model.recurrent_frontier_checkpoints and not memory.sysmem_kv_cache:
            yield (
                "model.recurrent_frontier_checkpoints",
                "with memory.sysmem_kv_cache 0 only page-aligned checkpoints can be kept; give it some MiB",
            )
        if model.prefill_cost_coefficients is not None and model.recurrent_eviction != "gds":
            yield "model.prefill_cost_coefficients", "has no effect without model.recurrent_eviction gds"
        if model.gpu_split and "gpu_split_auto" in model.model_fields_set and model.gpu_split_auto:
            yield "model.gpu_split_auto", "has no effect beside gpu_split; remove one of them"
        if self.images.model_fields_set and not model.vision:
            yield "images", "has no effect without model.vision"
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

    @property
    def credits_dir(self) -> str:
        """Where the page credit of all models is kept unless a model says where."""
        return str(Path(self.state_dir) / CREDITS_FOLDER)

    def engine_settings(self, key: str) -> EngineSettings:
        """What the engine of the model under that key is told."""
        return self.models[key].engine_settings(key, self.credits_dir)


def _shared(
    section: Section, options: type[ModelOptions | MemoryOptions | DraftOptions | ImageOptions]
) -> dict[str, Any]:
    return {field.name: getattr(section, field.name) for field in fields(options)}
