"""The sections `model`, `draft_model` and `lora`: which weights to load, and how they are laid out.

Names follow TabbyAPI's config, so that its sections can be pasted over.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from exllamav3_adapters.answer_format.find_format import tool_format_names
from litellm_exllamav3.section import (
    ConfigPath,
    Count,
    CountOrOff,
    NotNegative,
    Pages,
    Positive,
    Section,
    Whole,
    absolute_path,
    rounded_up,
)

DEMO_MODEL = "demo"


def _cache_mode(value: Any) -> Any:
    """`FP16`, or `k,v` with the spaces gone. TabbyAPI's Q4, Q6 and Q8 mean the same bits for both."""
    text = re.sub(r"\s", "", value).upper() if isinstance(value, str) else value
    if text == "FP16":
        return text
    if isinstance(text, str) and (short := re.fullmatch(r"Q([468])", text)):
        return f"{short[1]},{short[1]}"
    if isinstance(text, str) and re.fullmatch(r"[2-8],[2-8]", text):
        return text
    raise ValueError('should be FP16, or the bits of keys and values from 2 to 8, such as "8,8" or "6,5"')


def _switch(value: Any) -> Any:
    """YAML reads a bare on or off as true or false, which TabbyAPI's config also has here."""
    return ("off", "on")[value] if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
CacheMode = Annotated[str, BeforeValidator(_cache_mode)]


class ModelSection(Section):
    """Which model, and how it is laid out in memory."""

    model_dir: str = Field(
        description="Folder of the model, relative to the config file, or `demo` for the packaged SmolLM2-135M."
    )
    model_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a folder inside `model_dir`, if that holds several models, as in TabbyAPI's config.",
    )
    max_seq_len: Whole | None = Field(
        default=None,
        description="Longest prompt and answer together, in tokens. -1, or nothing, means the model's own.",
    )
    cache_size: Pages | None = Field(
        default=None,
        description="Tokens in the K/V cache, shared by all requests, a multiple of 256 and at least `max_seq_len`. "
        "By default `max_seq_len` rounded up.",
    )
    cache_mode: CacheMode = Field(
        default="FP16",
        description="How the cache is stored: `FP16`, or bits of keys and values from 2 to 8, such as `8,8`.",
    )
    chunk_size: Pages | None = Field(
        default=None,
        description="Tokens prefilled in one step, a multiple of 256, at most `cache_size`. A request can leave "
        "only between two steps. By default 512 on engine `cpu`, 2048 on others.",
    )
    shared_chunk_size: Pages | None = Field(
        default=None,
        description="Tokens prefilled in one step while other requests are decoding, a multiple of 256, at most "
        "`chunk_size`. By default the engine's choice, half of it.",
    )
    prefill_cooldown: CountOrOff | None = Field(
        default=None,
        description="Decoding steps between two prefill steps while other requests decode. Engine's default 4.",
    )
    max_batch_size: Count | None = Field(
        default=None, description="Sequences that are decoded together. By default the engine's choice."
    )
    max_history: CountOrOff = Field(
        default=0,
        description="Tokens by which a hybrid model's recurrent state can be rolled back, for drafting. 0: as many as "
        "are drafted.",
    )
    recurrent_state_fp32: bool = Field(
        default=False,
        description="Hybrid models: keep the recurrent state in 32 bits instead of 16. Twice the memory of each slot "
        "and checkpoint.",
    )
    chat_template: ConfigPath | None = Field(
        default=None,
        description="File with a Jinja chat template that replaces the model's own, relative to the config file.",
    )
    tool_format: str = Field(
        default="auto",
        description="The form of the model's tool calls by name, `auto`: by its chat template, or `none`: they stay "
        "text.",
    )
    reasoning: Switch = Field(
        default="auto",
        description="Tell what the model thinks from what it answers: `on`, `off`, or `auto`, where its chat template "
        "shows that it thinks.",
    )
    reasoning_start_token: str | None = Field(
        default=None, min_length=1, description="Text that begins reasoning. By default that of the model's family."
    )
    reasoning_end_token: str | None = Field(
        default=None, min_length=1, description="Text that ends reasoning. By default that of the model's family."
    )
    tensor_parallel: bool = Field(
        default=False, description="Split every layer over the GPUs instead of layers between them."
    )
    tensor_parallel_backend: Literal["native", "nccl"] = Field(
        default="native", description="How GPUs exchange data: `native` for PCIe, `nccl` for NVLink."
    )
    tensor_parallel_moe_split: bool = Field(
        default=False,
        description="Under `tensor_parallel`: split every expert over the GPUs instead of experts between them.",
    )
    tensor_parallel_limits: dict[Literal["attn", "linear_attn", "mlp", "moe", "linear"], Count] = Field(
        default={},
        description="Under `tensor_parallel`: most GPUs that share a layer, by its kind: `attn`, `linear_attn`, "
        "`mlp`, `moe`, or `linear` for the output.",
    )
    gpu_split_auto: bool = Field(
        default=True,
        description="Fill the GPUs in order, as much as fits on each. false, without `gpu_split` and "
        "`tensor_parallel`: use the first GPU only.",
    )
    autosplit_reserve: tuple[NotNegative, ...] = Field(
        default=(96.0,),
        description="MiB that automatic splitting leaves free on each GPU, one number a GPU; 512 on those beyond.",
    )
    gpu_split: tuple[NotNegative, ...] = Field(
        default=(), description="GiB to use on each GPU, one number a GPU; replaces automatic splitting."
    )
    moe_cpu_offload: CountOrOff = Field(
        default=0,
        description="Number of mixture-of-experts layers, from the first, whose routed experts run on the CPU.",
    )
    moe_cpu_split: CountOrOff = Field(
        default=0, description="Number of routed experts in every mixture-of-experts layer that run on the CPU."
    )
    vision: bool = Field(default=False, description="Load the model's vision component and accept images.")
    recurrent_frontier_checkpoints: bool = Field(
        default=False,
        description="Hybrid models: keep the recurrent state at the exact end of prompts and answers, not only at "
        "page boundaries. The partial page needs `memory.sysmem_kv_cache`.",
    )
    recurrent_eviction: Literal["lru", "gds"] = Field(
        default="lru",
        description="Hybrid models: which recurrent checkpoint goes first, the least recently used (`lru`) or the "
        "one that is cheapest to compute again for its size (`gds`).",
    )
    prefill_cost_coefficients: tuple[Positive, NotNegative] | None = Field(
        default=None,
        description="`[D, E]`: prefilling from token q to p costs `D*(p-q) + E*(p*p-q*q)`, positions in thousands "
        "of tokens; only the ratio matters. For `recurrent_eviction: gds`; by default measured while serving.",
    )

    @field_validator("model_dir")
    @classmethod
    def _absolute(cls, value: str, info: ValidationInfo) -> str:
        return value if value == DEMO_MODEL else absolute_path(value, info)

    @field_validator("tool_format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        names = ("auto", "none", *tool_format_names())
        if value not in names:
            raise ValueError(f"no such form; use one of {', '.join(names)}")
        return value

    @field_validator("max_seq_len")
    @classmethod
    def _own_length(cls, value: int | None) -> int | None:
        if value == -1:
            return None
        if value is not None and value < 1:
            raise ValueError("should be a positive number of tokens, or -1 for the model's own")
        return value

    @field_validator("cache_size")
    @classmethod
    def _holds_one_sequence(cls, value: int | None, info: ValidationInfo) -> int | None:
        longest = info.data.get("max_seq_len")
        if value is not None and longest is not None and value < longest:
            raise ValueError(f"is smaller than max_seq_len ({longest}); make it {rounded_up(longest)} or more")
        return value

    @field_validator("chunk_size")
    @classmethod
    def _fits_the_cache(cls, value: int | None, info: ValidationInfo) -> int | None:
        cache = info.data.get("cache_size")
        if cache is None and info.data.get("max_seq_len") is not None:
            cache = rounded_up(info.data["max_seq_len"])
        if value is not None and cache is not None and value > cache:
            raise ValueError(f"is larger than the cache ({cache} tokens); make it {cache} or less")
        return value

    @field_validator("shared_chunk_size")
    @classmethod
    def _within_a_chunk(cls, value: int | None, info: ValidationInfo) -> int | None:
        chunk = info.data.get("chunk_size")
        if value is not None and chunk is not None and value > chunk:
            raise ValueError(f"is larger than chunk_size ({chunk}); make it {chunk} or less")
        return value

    @field_validator("gpu_split")
    @classmethod
    def _some_memory(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value and not any(value):
            raise ValueError("gives no GPU any memory; give at least one a positive number of GiB")
        return value

    @field_validator("moe_cpu_offload", "moe_cpu_split")
    @classmethod
    def _not_under_tensor_parallel(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("tensor_parallel"):
            raise ValueError("cannot be combined with tensor_parallel: true; remove one of them")
        if value and info.field_name == "moe_cpu_split" and info.data.get("moe_cpu_offload"):
            raise ValueError("cannot be combined with moe_cpu_offload; remove one of them")
        return value

    @property
    def folder(self) -> str:
        """The model's own folder, or `demo`."""
        return str(Path(self.model_dir) / self.model_name) if self.model_name else self.model_dir

    @property
    def cache_tokens(self) -> int | None:
        """`cache_size` with its default worked out; None where that depends on the model."""
        if self.cache_size is None and self.max_seq_len is not None:
            return rounded_up(self.max_seq_len)
        return self.cache_size

    def chunk_tokens(self, engine: str) -> int:
        """`chunk_size` with the engine's default, cut to the cache.

        One step cannot be interrupted: 2,048 tokens of a small model take a CPU seconds, hence its smaller default.
        """
        if self.chunk_size is not None:
            return self.chunk_size
        default = 512 if engine == "cpu" else 2048
        return min(default, self.cache_tokens or default)


class DraftModelSection(Section):
    """Speculative decoding."""

    draft_model_dir: ConfigPath | None = Field(
        default=None, description="Folder of the draft model, relative to the config file."
    )
    draft_model_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a folder inside `draft_model_dir`, if that holds several models.",
    )
    draft_mode: Literal["disabled", "model", "mtp", "ngram"] = Field(
        default="disabled",
        description="Where drafts come from: a smaller `model`, the model's own `mtp` head, or repeated text "
        "(`ngram`). Engine `cpu` has no `mtp`, and drafts only where no model has recurrent layers.",
    )
    draft_num_tokens: Count | None = Field(
        default=None, description="Tokens drafted a step. By default the draft model's own."
    )
    dynamic_draft: bool = Field(default=False, description="Shorten drafts while few of their tokens are accepted.")
    hybrid_draft_tokens: CountOrOff = Field(
        default=0, description="Also draft from repeated text, this many tokens at once, when that many match. 0: off."
    )
    ngram_match_min: Count = Field(default=2, description="Tokens that must match before `ngram` drafts from them.")
    draft_cache_mode: CacheMode = Field(default="FP16", description="The draft model's `cache_mode`.")
    draft_gpu_split: tuple[NotNegative, ...] = Field(
        default=(), description="GiB for the draft model on each GPU. By default it is split automatically."
    )

    @property
    def folder(self) -> str | None:
        """The draft model's own folder, if one is named."""
        if self.draft_model_dir is None:
            return None
        return str(Path(self.draft_model_dir) / (self.draft_model_name or ""))

    @field_validator("draft_mode")
    @classmethod
    def _has_its_model(cls, value: str, info: ValidationInfo) -> str:
        if value == "model" and info.data.get("draft_model_dir", "") is None:
            raise ValueError("model needs draft_model_dir, the folder of the draft model")
        return value


class Lora(Section):
    """One adapter."""

    name: str = Field(min_length=1, description="Folder inside `lora_dir`.")
    scaling: NotNegative = Field(default=1.0, description="Factor on the adapter's weights.")


class LoraSection(Section):
    """LoRA adapters."""

    lora_dir: ConfigPath | None = Field(
        default=None, description="Folder with the adapters, relative to the config file."
    )
    loras: tuple[Lora, ...] = Field(default=(), description="Adapters to load, each `{name, scaling}`.")

    @field_validator("loras")
    @classmethod
    def _have_a_folder(cls, value: tuple[Lora, ...], info: ValidationInfo) -> tuple[Lora, ...]:
        if value and info.data.get("lora_dir") is None:
            raise ValueError("need lora_dir, the folder that holds them")
        return value
