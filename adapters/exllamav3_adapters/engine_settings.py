"""Everything an engine is told at load. Plain frozen values, stdlib only: they cross the process boundary.

The plugin validates what the user wrote (`litellm_exllamav3.settings`) and converts it to these, so an engine may
take every value here to be in range. Paths are absolute. 0 or empty means "off" unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Which model, and how it is laid out."""

    model_dir: str
    """Folder of the model, or `demo` for the packaged demo model."""
    max_seq_len: int | None = None
    """Context length in tokens. None: the model's own."""
    cache_size: int | None = None
    """Tokens in the K/V cache, a multiple of 256. None: `max_seq_len` rounded up to 256."""
    cache_mode: str = "FP16"
    """`FP16`, or `k,v` bits (2 to 8) of a quantised cache."""
    chunk_size: int = 2048
    """Tokens prefilled in one step, a multiple of 256; a request leaves at such a boundary at the latest."""
    max_batch_size: int | None = None
    """Sequences decoded together. None: the engine's default."""
    shared_chunk_size: int | None = None
    """Tokens prefilled in one step while other requests decode. None: the engine's choice."""
    prefill_cooldown: int | None = None
    """Decoding steps between two prefill steps while other requests decode. None: the engine's default."""
    max_history: int = 0
    """Tokens by which recurrent state can be rolled back, for drafting (hybrid models only). 0: as many as are
    drafted."""
    recurrent_state_fp32: bool = False
    """Keep recurrent state in 32 bits instead of 16 (hybrid models only)."""
    tensor_parallel: bool = False
    tensor_parallel_backend: Literal["native", "nccl"] = "native"
    tensor_parallel_moe_split: bool = False
    """Split every expert over the GPUs instead of experts between them."""
    tensor_parallel_limits: Mapping[str, int] = field(default_factory=dict)
    """Most GPUs that share one layer, by its kind: `attn`, `linear_attn`, `mlp`, `moe`, `linear` (the output)."""
    gpu_split_auto: bool = True
    """Fill the GPUs in order. False: the first one only. Without effect beside `gpu_split` or `tensor_parallel`."""
    autosplit_reserve: tuple[float, ...] = (96.0,)
    """MiB that automatic splitting leaves free, one number a GPU; 512 on those beyond."""
    gpu_split: tuple[float, ...] = ()
    """GiB to use, one number a GPU. Empty: automatic."""
    moe_cpu_offload: int = 0
    """Mixture-of-experts layers, from the first, whose routed experts run on the CPU."""
    moe_cpu_split: int = 0
    """Routed experts in every mixture-of-experts layer that run on the CPU."""
    vision: bool = False
    chat_template: str | None = None
    """Path of a Jinja chat template that replaces the model's own."""
    tool_format: str = "auto"
    """The form of the model's tool calls (`answer_format/tool_formats.py`), `auto`: by its template, or `none`."""
    reasoning: Literal["auto", "on", "off"] = "auto"
    """Whether reasoning is told from the answer. `auto`: where the template names the tags of a known family."""
    reasoning_start_token: str | None = None
    """Text before reasoning. None: the family's."""
    reasoning_end_token: str | None = None
    recurrent_frontier_checkpoints: bool = False
    recurrent_eviction: Literal["lru", "gds"] = "lru"
    prefill_cost_coefficients: tuple[float, float] | None = None
    """`(D, E)` of `D*(p-q) + E*(p*p-q*q)`, positions in thousands of tokens. None: measured while serving."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryOptions:
    """Tiers behind the cache, and the eviction policy."""

    sysmem_kv_cache: int = 0
    """MiB of system memory for evicted pages."""
    sysmem_recurrent_cache: int = 4096
    """MiB of system memory for recurrent checkpoints (hybrid models only)."""
    disk_cache_dir: str | None = None
    disk_cache_size: int = 51200
    """MiB."""
    disk_cache_flush_on_idle: bool = True
    disk_cache_checkpoint_interval: int = 4096
    """Tokens."""
    disk_cache_write_interval: float = 2.0
    """Seconds."""
    recurrent_checkpoint_interval: int | None = None
    """Tokens between recurrent checkpoints while decoding, a multiple of 256. None: the model's own."""
    recurrent_checkpoint_interval_pp: int = 32768
    """The same during prefill."""
    pin_max_fraction: float = 0.5
    """Largest part of the cache that pinned prefixes may hold."""
    aging_lfu: bool = False
    """Keep a share of the cache by reuse credit that decays with time. The options below belong to it."""
    aging_half_life_hours: float = 1.0
    aging_share: float = 0.03
    """Part of the cache that is kept by credit; recency orders the rest."""
    aging_hit_cap_pages: int = 64
    """Leading pages of a prompt that can earn credit. 0: all."""
    aging_weight_cap: float = 0.0
    """Upper bound of a page's credit. 0: none."""
    aging_persist_dir: str | None = None
    """Folder that keeps the credit of all models over restarts. None: it is not kept."""
    aging_capture_prefixes: bool = False
    aging_prefix_min_tokens: int = 512
    aging_prefix_max_tokens: int = 32768
    aging_prefix_max_entries: int = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftOptions:
    """Speculative decoding."""

    draft_model_dir: str | None = None
    """Folder of the draft model; needed for `draft_mode` `model` alone."""
    draft_mode: Literal["disabled", "model", "mtp", "ngram"] = "disabled"
    draft_num_tokens: int | None = None
    """Tokens drafted a step. None: the draft model's own."""
    dynamic_draft: bool = False
    hybrid_draft_tokens: int = 0
    """Also draft from repeated text, this many tokens at once, when that many match."""
    ngram_match_min: int = 2
    draft_cache_mode: str = "FP16"
    draft_gpu_split: tuple[float, ...] = ()
    """GiB, one number a GPU. Empty: automatic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageOptions:
    """What the engine does with images, where the model reads them (`ModelOptions.vision`)."""

    max_pixels: int = 50_000_000
    """Of one image. It takes up to eight bytes a pixel while it is decoded."""
    cache_mebibytes: int = 512
    """Prepared images that are kept for requests to come, in system memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraOptions:
    """One adapter."""

    folder: str
    scaling: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """All of one model's engine settings."""

    model_key: str
    """The name after `exllamav3/`."""
    model: ModelOptions
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    draft: DraftOptions = field(default_factory=DraftOptions)
    loras: tuple[LoraOptions, ...] = ()
    images: ImageOptions = field(default_factory=ImageOptions)
