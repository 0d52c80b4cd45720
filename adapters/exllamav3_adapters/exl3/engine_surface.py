"""Everything of exllamav3's that we rely on, in one place. Plain data: a test holds the installed package against it,
and `make test-next` the newest release.

What the compiled extension gives to the scheduler is `cpu/extension.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Surface:
    """What we rely on of one class, or of the functions of one module."""

    passes: Mapping[str, Names] = field(default_factory=dict)
    """Function -> the arguments that we pass by name. It may have others."""
    exactly: Mapping[str, Names] = field(default_factory=dict)
    """Function -> all of its parameters: ours takes its place, or passes them by position."""
    attributes: Names = ()
    """Of an object. Functions that are called without arguments are among them."""


VISION_COMPONENTS: Final = (
    "deepseek_v4_vision:DeepseekV4VisionModel",
    "gemma3:Gemma3VisionModel",
    "gemma4:Gemma4UnifiedVisionModel",
    "gemma4:Gemma4VisionModel",
    "glm4v:Glm4VVisionModel",
    "glm5_next:Glm5NextVisionModel",
    "hcxvisionv2:HCXVisionV2VisionModel",
    "lfm2_vl:Lfm2VlVisionModel",
    "mimo_v2_vision:MiMoV2VisionModel",
    "mistral3:Mistral3VisionModel",
    "muse_glimmer:MuseGlimmerVisionModel",
    "nemotronh:NemotronHOmniVisionModel",
    "qwen2_5_vl:Qwen2_5VLVisionModel",
    "qwen3_vl:Qwen3VLVisionModel",
    "step3_7:Step3_7VisionModel",
)
"""Of `exllamav3.architecture`: they have no base class that says what they are called with."""

SURFACE: Final[Mapping[str, Surface]] = {
    **{
        f"exllamav3.architecture.{place}": Surface(
            exactly={"get_image_embeddings": ("self", "tokenizer", "image", "text_alias")}
        )
        for place in VISION_COMPONENTS
    },
    "exllamav3.architecture.architectures:": Surface(exactly={"get_architectures": ()}),
    "exllamav3.model.config:Config": Surface(
        passes={
            "from_directory": ("directory",),
            "override_dynamic_seq_len": ("new_max_position_embeddings",),
        },
        attributes=(
            "architecture",
            "bos_token_id",
            "config_dict",
            "directory",
            "eos_token_id",
            "eos_token_id_list",
            "infer_params",
            "model_classes",
            "pad_token_id",
            "vocab_size",
        ),
    ),
    "exllamav3.model.config:InferParams": Surface(attributes=("moe_cpu_offload", "moe_cpu_split")),
    "exllamav3.model.model:Model": Surface(
        passes={
            "from_config": ("config", "component"),
            "load_gen": (
                "reserve_per_device",
                "use_per_device",
                "tensor_p",
                "tp_backend",
                "tp_options",
                "tp_dev_limits",
                "max_chunk_size",
                "max_batch_size",
                "draft_model",
            ),
            "warmup": ("cache", "max_chunk_size", "max_batch_size", "callback"),
        },
        exactly={"prefill": ("self", "input_ids", "params"), "forward": ("self", "input_ids", "params")},
        attributes=(
            "cache_weakrefs",
            "caps",
            "config",
            "destroy_tp_context",
            "get_cache_layers",
            "get_layer_instances",
            "get_recurrent_layers",
            "loaded_tp",
            "modules",
            "mp_children",
            "output_device",
            "prefetch_tokens",
            "recurrent_state_cls",
            "unload",
        ),
    ),
    "exllamav3.model.lora:LoRA": Surface(
        passes={"from_directory": ("model", "directory", "lora_scaling")}, attributes=("target_modules",)
    ),
    "exllamav3.cache.cache:Cache": Surface(
        passes={
            "__init__": ("model", "max_num_tokens", "layer_type", "max_batch_size", "max_history", "recurrent_dtype")
        },
        attributes=("detach_from_model", "initialized", "layers", "max_num_tokens", "model", "recurrent_layers"),
    ),
    "exllamav3.cache.fp16:CacheLayer_fp16": Surface(
        exactly={
            "__init__": ("self", "config", "attention", "cache_id", "max_num_tokens"),
            "alloc": ("self", "device"),
            "storage_size": ("self",),
        },
        attributes=("device", "k", "shape", "v"),
    ),
    "exllamav3.cache.quant:CacheLayer_quant": Surface(
        passes={"__init__": ("k_bits", "v_bits")}, attributes=("k_bits", "storage_size", "v_bits")
    ),
    "exllamav3.cache.recurrent:": Surface(passes={"host_copy": ()}),
    "exllamav3.cache.recurrent:RecurrentCache": Surface(
        exactly={
            "_insert": ("self", "key", "stashed", "persist", "state"),
            "_release": ("self", "stashed"),
            "get_stashed": ("self", "key", "default"),
            "has": ("self", "key"),
            "prune_stranded": ("self",),
            "put": ("self", "key", "state"),
            "rekey": ("self", "old_key", "new_key"),
        },
        attributes=("disk_tier", "metrics", "pagetable", "update_total_size"),
    ),
    "exllamav3.cache.recurrent:PairedState": Surface(attributes=("position", "stash", "target")),
    "exllamav3.cache.recurrent_util:": Surface(exactly={"advance_recurrent_states": ("input_ids", "params", "model")}),
    "exllamav3.constants:": Surface(attributes=("PAGE_SIZE",)),
    "exllamav3.modules:": Surface(attributes=("BlockSparseMLP",)),
    "exllamav3.modules.gated_delta_net:GDNState": Surface(attributes=("position", "slot", "stash")),
    "exllamav3.tokenizer.mm_embedding:": Surface(attributes=("FIRST_MM_EMBEDDING_INDEX",)),
    "exllamav3.tokenizer.mm_embedding:MMEmbedding": Surface(
        exactly={"token_list_at": ("self", "position")},
        attributes=("align", "deepstack_embeddings", "embeddings", "first_index", "last_index", "text_alias"),
    ),
    "exllamav3.tokenizer.tokenizer:Tokenizer": Surface(
        passes={
            "encode": ("text", "encode_special_tokens"),
            "decode": ("decode_special_tokens",),
        },
        exactly={"__init__": ("self", "config")},
        attributes=(
            "bos_token_id",
            "config",
            "eos_token_id",
            "get_id_to_piece_list",
            "tokenizer",
            "tokenizer_config_dict",
        ),
    ),
    "exllamav3.generator.generator:Generator": Surface(
        passes={
            "__init__": (
                "model",
                "cache",
                "tokenizer",
                "draft_model",
                "draft_cache",
                "max_batch_size",
                "max_chunk_size",
                "shared_chunk_size",
                "prefill_cooldown",
                "num_draft_tokens",
                "ngram_match_min",
                "dynamic_draft_tokens",
                "hybrid_draft_tokens",
                "cpu_cache_size",
                "disk_cache_dir",
                "disk_cache_size",
                "disk_cache_flush_on_idle",
                "disk_cache_checkpoint_interval",
                "disk_cache_write_interval",
                "recurrent_cache_size",
                "recurrent_checkpoint_interval",
                "recurrent_checkpoint_interval_pp",
            ),
            "cancel": (),
            "enqueue": (),
            "recurrent_state_from_stashed": ("stashed", "position"),
        },
        exactly={"recurrent_checkpoint": ("self",), "iterate": ("self",)},
        attributes=(
            "_cache_stats_memo",
            "cache",
            "clear_queue",
            "close",
            "cpu_page_cache",
            "disk_page_cache",
            "draft_model",
            "get_cache_stats",
            "has_idle_work",
            "idle_work",
            "max_batch_size",
            "max_chunk_size",
            "max_draft_tokens",
            "model",
            "num_remaining_jobs",
            "pagetable",
            "recurrent_cache",
            "tokenizer",
        ),
    ),
    "exllamav3.generator.job:": Surface(attributes=("NonFiniteLogits",)),
    "exllamav3.generator.job:Job": Surface(
        passes={
            "__init__": (
                "input_ids",
                "max_new_tokens",
                "min_new_tokens",
                "decode_special_tokens",
                "sampler",
                "seed",
                "stop_conditions",
                "banned_strings",
                "return_probs",
                "return_top_tokens",
                "filters",
                "embeddings",
                "identifier",
                "max_rq_tokens",
            )
        },
        exactly={
            "_check_banned_strings": ("self", "banned_strings"),
            "activate": ("self",),
            "allocate_pages": ("self",),
            "current_new_pages_required": ("self",),
            "deallocate_pages": ("self",),
            "maybe_stash_recurrent": ("self", "cache", "interval"),
            "prefill": ("self", "results", "chunk_size"),
            "prepare_logit_mask": ("self",),
            "prepare_sampling_past_ids": ("self",),
            "receive_logits": ("self", "logits"),
            "receive_sample": (
                "self",
                "logits",
                "next_token",
                "next_k_tokens",
                "next_k_probs",
                "next_prob",
                "results",
                "first_sample_in_sd_batch",
            ),
        },
        attributes=(
            "all_unique_hashes",
            "alt_rope_freqs",
            "cached_pages",
            "cached_tokens",
            "device_logit_mask",
            "embeddings",
            "filters",
            "free_recurrent_state",
            "generator",
            "held_text",
            "held_tokens",
            "identifier",
            "is_finished",
            "is_prefill_done",
            "is_requeued",
            "last_recurrent_checkpoint_pos",
            "pagetable",
            "pinned_logit_bitmask",
            "pinned_logit_mask",
            "recurrent_state",
            "sequences",
            "serial_number",
            "stop_strings",
            "time_first_prefill",
        ),
    ),
    "exllamav3.generator.pagetable:": Surface(passes={"is_content_hash": (), "tensor_hash_checksum": ()}),
    "exllamav3.generator.pagetable:PageTable": Surface(
        exactly={
            "allocate_pages": (
                "self",
                "page_hashes",
                "new_unique_pages",
                "recurrent_pages",
                "protected_hashes",
                "restore_limit",
            ),
            "build_eviction_order": ("self", "protected_hashes"),
            "evict": ("self", "page", "protect"),
            "get_live_page": ("self", "phash"),
            "is_resumable": ("self", "phash"),
            "reset_page_table": ("self",),
        },
        attributes=(
            "access_serial",
            "all_pages",
            "cpu_tier",
            "max_pages",
            "metrics",
            "referenced_pages",
            "unreferenced_pages",
        ),
    ),
    "exllamav3.generator.pagetable:CachePage": Surface(
        attributes=(
            "access_serial",
            "can_revert",
            "clear",
            "kv_position",
            "page_index",
            "pagetable",
            "persistable",
            "phash",
            "prev_hash",
            "ref_count",
            "sequence",
        )
    ),
    "exllamav3.generator.pagetable:Sequence": Surface(
        attributes=(
            "allocated_pages",
            "block_index_tensor",
            "kv_position",
            "page_hashes",
            "prefill_complete",
            "sequence_ids",
        )
    ),
    "exllamav3.generator.cpu_cache:CPUPageCache": Surface(
        exactly={
            "__init__": ("self", "caches", "max_size"),
            "_build_order": ("self",),
            "_busy": ("self", "phash", "e"),
            "fetch": ("self", "phash", "page_index", "serial"),
            "promote": ("self", "phash", "serial", "protect"),
            "store": ("self", "page", "serial", "protect"),
        },
        attributes=(
            "_order",
            "_order_pops",
            "_order_rebuild",
            "disk_tier",
            "entries",
            "free_slots",
            "max_slots",
            "pagetable",
            "segments",
            "slab_view",
        ),
    ),
    "exllamav3.generator.disk_cache:": Surface(passes={"model_identity": ()}),
    "exllamav3.generator.disk_cache:DiskPageCache": Surface(
        attributes=(
            "_drop",
            "_lock",
            "_read_tokens",
            "abort",
            "flush",
            "has_page",
            "page_prev_hash",
            "pages",
            "states",
        )
    ),
    "exllamav3.generator.filter.filter:Filter": Surface(
        exactly={
            "__init__": ("self", "tokenizer", "trigger_token", "prefix_str", "eos_after_completed"),
            "accept_token": ("self", "token"),
            "attach": ("self", "job"),
            "get_next_logit_mask": ("self",),
            "is_completed": ("self",),
            "reset": ("self",),
            "rollback_tokens": ("self", "num_tokens"),
            "use_background_worker": ("self",),
        },
        attributes=("eos_after_completed", "job", "prefix_str", "tokenizer", "trigger_token", "vocab_size"),
    ),
    "exllamav3.generator.filter.llguidance:": Surface(passes={"create_ll_tokenizer": ()}),
    "exllamav3.generator.sampler:": Surface(
        passes={"dry_sequence_breaker_tokens": ()},
        attributes=(
            "CustomSampler",
            "SS_AdaptiveP",
            "SS_Argmax",
            "SS_BanTokens",
            "SS_Base",
            "SS_DRY",
            "SS_LogitBias",
            "SS_MinP",
            "SS_PresFreqP",
            "SS_RepP",
            "SS_Sample",
            "SS_Temperature",
            "SS_TopK",
            "SS_TopP",
            "SS_XTC",
        ),
    ),
    "exllamav3.generator.sampler.custom:SS_Base": Surface(exactly={"run": ("self", "state")}),
}
"""`module:class`, or `module:` for what stands in the module itself."""

KEYS: Final[Mapping[str, Names]] = {
    "exllamav3.generator.job": (
        # of a result, and what some of them may say
        "cached_tokens",
        "curr_progress",
        "eos",
        "eos_reason",
        "eos_triggering_string",
        "eos_triggering_token_id",
        "held",
        "identifier",
        "job",
        "max_progress",
        "new_tokens",
        "serial",
        "stage",
        "text",
        "token_ids",
        "token_probs",
        "top_k_probs",
        "top_k_tokens",
        "prefill",
        "streaming",
        "end_filter",
        "loop_detected",
        "max_new_tokens",
        "stop_string",
        "stop_token",
        # of the parameters of a forward
        "attn_mode",
        "block_table",
        "cache",
        "cache_seqlens",
        "flash_attn",
        "indexed_embeddings",
        "inv_freq",
        "mm_span_prefix",
        "recurrent_states",
    ),
    "exllamav3.generator.generator": (
        "cached_tokens",
        "default_draft_size",
        "disk_cached_tokens",
        "error",
        "mtp_draft",
        "recurrent_states",
        "started",
        "tier_cached_tokens",
        "used_tokens",
    ),
    "exllamav3.generator.pagetable": ("alloc_disk_pages", "alloc_tier_pages", "evictions_live"),
    "exllamav3.generator.cpu_cache": ("prev_hash", "slot", "tokens"),
    "exllamav3.generator.disk_cache": ("position", "prev_hash"),
    "exllamav3.cache.recurrent": (
        "checkpoint_size",
        "position",
        "stash_evictions",
        "stash_evictions_stranded",
        "stash_pruned",
    ),
    # the processes of experts on the CPU, which `Model.load` starts and `load_gen` does not
    "exllamav3.model.model": ("last_tokens_only", "moe_cpu_hosts"),
}
"""Module -> keys and values of dictionaries that its code has."""
