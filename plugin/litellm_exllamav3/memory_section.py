"""The section `memory`: tiers behind the cache, which pages leave it first, and what is prefilled before traffic.

Names follow TabbyAPI's config and the pull request that brings aging and warm prefixes to it.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from litellm_exllamav3.section import (
    PAGE_TOKENS,
    ConfigPath,
    Count,
    CountOrOff,
    Fraction,
    NotNegative,
    Pages,
    Real,
    Section,
    Whole,
)

HALF_LIFE_WARNING_HOURS = 1.0
"""Beyond it credit outlives the prompts that earned it. This and the next: measured by `benchmarks/traces.py`."""
SHARE_WARNING = 0.05
"""Beyond it the share that is kept by credit costs more recent pages than it is worth."""

LARGEST_TOKEN_ID = 2**31 - 1


class WarmPrompt(Section):
    """A chat that is rendered by the model's template and prefilled after load."""

    messages: tuple[dict[str, Any], ...] = Field(
        default=(), description="Messages in the OpenAI form; those before the first user message are the head."
    )
    tools: tuple[dict[str, Any], ...] = Field(default=(), description="Tool definitions in the OpenAI form.")

    @field_validator("messages")
    @classmethod
    def _have_roles(cls, messages: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for index, message in enumerate(messages):
            role = message.get("role")
            if not isinstance(role, str) or not role:
                raise ValueError(f"message {index} has no role; give it one, such as system or user")
            if not isinstance(message.get("content"), str | list) and "tool_calls" not in message:
                raise ValueError(f"message {index} has no content; give it a text or a list of parts")
        return messages

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, tools: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for index, tool in enumerate(tools):
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
                raise ValueError(f"tool {index} is not of the form {{type: function, function: {{name: ...}}}}")
        return tools

    @model_validator(mode="after")
    def _says_something(self) -> WarmPrompt:
        if not self.messages and not self.tools:
            raise ValueError("is empty; give it messages, tools or both")
        return self


class MemorySection(Section):
    """Tiers behind the cache, the eviction policy, and what is kept warm."""

    sysmem_kv_cache: CountOrOff = Field(
        default=0, description="MiB of system memory for pages that were evicted from the cache. 0: off."
    )
    sysmem_recurrent_cache: CountOrOff = Field(
        default=4096, description="MiB of system memory for recurrent checkpoints; hybrid models only."
    )
    disk_cache_dir: ConfigPath | None = Field(
        default=None,
        description="Folder of the tier on disk, relative to the config file. It holds pages that leave system "
        "memory and survives restarts; needs `sysmem_kv_cache`. By default off.",
    )
    disk_cache_size: Count = Field(default=51200, description="MiB that the whole folder may hold.")
    disk_cache_flush_on_idle: bool = Field(
        default=True, description="Also write the pages that are still in the cache whenever no request runs."
    )
    disk_cache_checkpoint_interval: CountOrOff = Field(
        default=4096,
        description="Hybrid models: least distance in tokens between recurrent checkpoints on disk. 0: keep all.",
    )
    disk_cache_write_interval: NotNegative = Field(
        default=2.0,
        description="Seconds between writes of the pages of running requests. 0: only when idle or evicted.",
    )
    recurrent_checkpoint_interval: Pages | None = Field(
        default=None,
        description="Hybrid models: tokens between recurrent checkpoints while decoding, a multiple of 256. By "
        "default the model's own.",
    )
    recurrent_checkpoint_interval_pp: Pages = Field(
        default=32768,
        description="Hybrid models: tokens between recurrent checkpoints during prefill, a multiple of 256.",
    )
    pin_max_fraction: Fraction = Field(
        default=0.5,
        description="Largest part of the cache, 0 to 1, that pinned prefixes may hold; what is over is kept warm "
        "like any other page.",
    )
    warm_prefixes: tuple[str, ...] = Field(
        default=(),
        description="Texts that are tokenised as they stand, without template, prefilled after load and pinned.",
    )
    warm_prefix_token_ids: tuple[tuple[Whole, ...], ...] = Field(
        default=(), description="The same as exact token ids, one list a prefix."
    )
    warm_prompts: tuple[WarmPrompt, ...] = Field(
        default=(),
        description="The same as chats, `{messages: [...], tools: [...]}`, rendered by the model's template.",
    )
    warm_prefix_max_tokens: CountOrOff | None = Field(
        default=None,
        description="Most tokens of captured prefixes that are replayed after load, most recently written first; "
        "configured ones are not counted. 0: none. By default what fits the cache beside the pinned ones.",
    )
    aging_lfu: bool = Field(
        default=False,
        description="Keep a share of the cache by reuse credit that decays with time, instead of all of it by recency.",
    )
    aging_half_life_hours: Real = Field(
        default=1.0,
        ge=1e-6,  # beyond these bounds a weight is no number any more
        le=1e6,
        description="Hours in which credit halves.",
    )
    aging_share: Fraction = Field(
        default=0.03,
        description="Part of the cache, 0 to 1, that is kept by credit; recency orders the rest. 1: all of it.",
    )
    aging_hit_cap_pages: CountOrOff = Field(
        default=64, description="A hit credits at most this many leading pages of a prompt. 0: all."
    )
    aging_weight_cap: NotNegative = Field(
        default=0.0, description="Upper bound of one page's credit, in hits. 0: none."
    )
    aging_persist_dir: ConfigPath | None = Field(
        default=None,
        description="Folder where credit is kept over restarts. By default `credits` under `state_dir`.",
    )
    aging_capture_prefixes: bool = Field(
        default=False,
        description="Let the engine itself record token prefixes that later requests hit; they are kept and replayed "
        "beside the captured heads, as long as the model, its tokenizer and the cache's layout stay the same.",
    )
    aging_prefix_min_tokens: Count = Field(default=512, description="Shortest prefix that is recorded, in tokens.")
    aging_prefix_max_tokens: Count = Field(
        default=32768,
        validate_default=True,  # against a shortest one that is longer
        description="Longest prefix that is recorded, in tokens.",
    )
    aging_prefix_max_entries: Count = Field(
        default=64, description="Most prefixes that are recorded, and kept in the store."
    )

    @field_validator("disk_cache_dir")
    @classmethod
    def _behind_system_memory(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("sysmem_kv_cache") == 0:
            raise ValueError("needs sysmem_kv_cache, which pages pass on their way to disk; set it to some MiB")
        return value

    @field_validator(
        "disk_cache_size", "disk_cache_flush_on_idle", "disk_cache_checkpoint_interval", "disk_cache_write_interval"
    )
    @classmethod
    def _of_the_disk_tier(cls, value: float, info: ValidationInfo) -> float:
        if info.data.get("disk_cache_dir", "") is None:
            raise ValueError("has no effect without disk_cache_dir; set that too, or remove this")
        return value

    @field_validator("warm_prefixes")
    @classmethod
    def _not_blank(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for index, text in enumerate(value):
            if not text:
                raise ValueError(f"entry {index} is empty; remove it")
        return value

    @field_validator("warm_prefix_token_ids")
    @classmethod
    def _are_token_ids(cls, value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        for index, ids in enumerate(value):
            if not ids:
                raise ValueError(f"entry {index} is empty; remove it")
            if min(ids) < 0 or max(ids) > LARGEST_TOKEN_ID:
                raise ValueError(f"entry {index} has a token id that is not from 0 to {LARGEST_TOKEN_ID}")
        return value

    @field_validator("aging_prefix_max_tokens")
    @classmethod
    def _not_below_the_shortest(cls, value: int, info: ValidationInfo) -> int:
        shortest = info.data.get("aging_prefix_min_tokens")
        if shortest is not None and value < shortest:
            raise ValueError(f"is smaller than aging_prefix_min_tokens ({shortest})")
        longest = value // PAGE_TOKENS * PAGE_TOKENS
        if shortest is not None and longest < shortest:
            raise ValueError(
                f"leaves no prefix to record: {longest} tokens in whole pages of {PAGE_TOKENS}, and "
                f"aging_prefix_min_tokens is {shortest}"
            )
        return value

    @model_validator(mode="after")
    def _of_the_policy(self) -> MemorySection:
        """An explicit `aging_lfu: false` may keep its options, so that it can be switched to and fro."""
        if "aging_lfu" not in self.model_fields_set and (names := self.aging_options()):
            raise ValueError(f"{', '.join(names)}: no effect without aging_lfu; set aging_lfu to true or to false")
        return self

    def aging_options(self) -> tuple[str, ...]:
        """The options of the aging policy that were set."""
        return tuple(
            name
            for name in type(self).model_fields
            if name.startswith("aging_") and name != "aging_lfu" and name in self.model_fields_set
        )
