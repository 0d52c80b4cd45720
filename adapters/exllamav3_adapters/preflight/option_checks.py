"""Options that cannot be carried out, exclude each other, or mean nothing on this machine or model."""

from __future__ import annotations

from collections.abc import Iterator

from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.machine import Machine
from exllamav3_adapters.preflight.model_costs import PAGE_TOKENS, ModelCosts

_REMOVE = "remove one of the two"


def option_findings(settings: EngineSettings, machine: Machine) -> Iterator[Finding]:
    """What can be said without knowing the model."""
    yield from _size_findings(settings)
    yield from _exclusion_findings(settings)
    yield from _draft_findings(settings)
    if machine.gpus:
        yield from _gpu_findings(settings, len(machine.gpus))


def model_findings(settings: EngineSettings, costs: ModelCosts) -> Iterator[Finding]:
    """What the model has no use for, or cannot do."""
    options = settings.model
    if options.tensor_parallel and not costs.supports_tensor_parallel:
        yield Finding(
            subject="model.tensor_parallel",
            fault=f"exllamav3 cannot split the layers of {costs.architecture} over GPUs",
            remedy="remove it; the layers are then divided between the GPUs",
        )
    if not any(component.is_recurrent for component in costs.components):
        yield from (
            _without_effect(name, f"{costs.architecture} has no recurrent layers") for name in _recurrent(settings)
        )
    yield from _expert_findings(options, costs)


def _size_findings(settings: EngineSettings) -> Iterator[Finding]:
    options, memory = settings.model, settings.memory
    sizes = {
        "model.cache_size": options.cache_size,
        "model.chunk_size": options.chunk_size,
        "model.shared_chunk_size": options.shared_chunk_size,
        "memory.recurrent_checkpoint_interval": memory.recurrent_checkpoint_interval,
        "memory.recurrent_checkpoint_interval_pp": memory.recurrent_checkpoint_interval_pp,
    }
    for name, tokens in sizes.items():
        if tokens is not None and (tokens % PAGE_TOKENS or tokens < PAGE_TOKENS):
            near = max(1, round(tokens / PAGE_TOKENS)) * PAGE_TOKENS
            yield Finding(
                subject=name,
                fault=f"{tokens} tokens are not a multiple of {PAGE_TOKENS}, exllamav3's page",
                remedy=f"set it to {near}",
            )
    if options.cache_size is not None and options.chunk_size > options.cache_size:
        yield Finding(
            subject="model.chunk_size",
            fault=f"{options.chunk_size} tokens are more than model.cache_size ({options.cache_size})",
            remedy=f"set it to {options.cache_size} at most",
        )
    if options.shared_chunk_size is not None and options.shared_chunk_size > options.chunk_size:
        yield Finding(
            subject="model.shared_chunk_size",
            fault=f"{options.shared_chunk_size} tokens are more than model.chunk_size ({options.chunk_size})",
            remedy=f"set it to {options.chunk_size} at most",
        )


def _exclusion_findings(settings: EngineSettings) -> Iterator[Finding]:
    options = settings.model
    pairs = [
        ("model.moe_cpu_offload", options.moe_cpu_offload, "model.tensor_parallel", options.tensor_parallel),
        ("model.moe_cpu_split", options.moe_cpu_split, "model.tensor_parallel", options.tensor_parallel),
        ("model.moe_cpu_split", options.moe_cpu_split, "model.moe_cpu_offload", options.moe_cpu_offload),
        ("lora.loras", settings.loras, "model.tensor_parallel", options.tensor_parallel),
    ]
    for one, one_is_set, other, other_is_set in pairs:
        if one_is_set and other_is_set:
            yield Finding(subject=one, fault=f"cannot be combined with {other}", remedy=_REMOVE)
    if settings.memory.disk_cache_dir is not None and not settings.memory.sysmem_kv_cache:
        yield Finding(
            subject="memory.disk_cache_dir",
            fault="the disk tier lies behind the one in system memory, which is off (memory.sysmem_kv_cache: 0)",
            remedy="set memory.sysmem_kv_cache to some hundred MiB, or remove memory.disk_cache_dir",
        )


def _draft_findings(settings: EngineSettings) -> Iterator[Finding]:
    draft = settings.draft
    if draft.draft_mode == "model" and draft.draft_model_dir is None:
        yield Finding(
            subject="draft_model.draft_mode",
            fault="model needs a draft model, and none is named",
            remedy="set draft_model.draft_model_dir to its folder, or draft_mode to ngram",
        )
    drafts_by_model = draft.draft_mode in ("model", "mtp")
    no_model = f"no model drafts (draft_mode: {draft.draft_mode})"
    needs = {
        "draft_model.draft_model_dir": (draft.draft_model_dir is not None, draft.draft_mode == "model"),
        "draft_model.draft_num_tokens": (draft.draft_num_tokens is not None, draft.draft_mode != "disabled"),
        "draft_model.dynamic_draft": (draft.dynamic_draft, drafts_by_model),
        "draft_model.draft_cache_mode": (draft.draft_cache_mode != "FP16", drafts_by_model),
        "draft_model.draft_gpu_split": (bool(draft.draft_gpu_split), drafts_by_model),
    }
    for name, (is_set, is_of_use) in needs.items():
        if is_set and not is_of_use:
            yield _without_effect(name, no_model, "remove it, or set draft_model.draft_mode")


def _gpu_findings(settings: EngineSettings, num_gpus: int) -> Iterator[Finding]:
    splits = {
        "model.gpu_split": settings.model.gpu_split,
        "draft_model.draft_gpu_split": settings.draft.draft_gpu_split,
    }
    for name, split in splits.items():
        if any(split[num_gpus:]):
            yield Finding(
                subject=name,
                fault=f"gives memory on {len(split)} GPUs, and there {_are(num_gpus)}",
                remedy=f"give {num_gpus} number{'s' * (num_gpus > 1)}, or look what CUDA_VISIBLE_DEVICES hides",
            )
        elif split and num_gpus == 1:
            yield _without_effect(name, "there is one GPU")
    if settings.model.tensor_parallel and num_gpus == 1:
        yield _without_effect("model.tensor_parallel", "there is one GPU")


def _expert_findings(options: ModelOptions, costs: ModelCosts) -> Iterator[Finding]:
    asked = {"model.moe_cpu_offload": options.moe_cpu_offload, "model.moe_cpu_split": options.moe_cpu_split}
    for name, number in asked.items():
        if not number:
            continue
        if not costs.expert_layers:
            yield _without_effect(name, f"{costs.architecture} has no experts")
        elif not costs.offloadable_layers:
            yield _without_effect(
                name,
                "the experts are not stored with the mul1 codebook, the only one that exllamav3 computes on the CPU",
                "use a version of the model that is, or remove it",
            )
        elif name == "model.moe_cpu_offload" and number > costs.expert_layers:
            yield _more_than(name, number, costs.expert_layers, "mixture-of-experts layers that the model has")
        elif name == "model.moe_cpu_split" and number >= costs.experts_per_layer:
            yield _more_than(
                name, number, costs.experts_per_layer - 1, "experts of a layer, but for the one on the GPU"
            )


def _recurrent(settings: EngineSettings) -> Iterator[str]:
    """Options that are set and that only recurrent layers have a use for."""
    for section, given, defaults, names in (
        (
            "model",
            settings.model,
            ModelOptions(model_dir=""),
            (
                "max_history",
                "recurrent_state_fp32",
                "recurrent_frontier_checkpoints",
                "recurrent_eviction",
                "prefill_cost_coefficients",
            ),
        ),
        (
            "memory",
            settings.memory,
            MemoryOptions(),
            ("sysmem_recurrent_cache", "recurrent_checkpoint_interval", "recurrent_checkpoint_interval_pp"),
        ),
    ):
        for name in names:
            if getattr(given, name) != getattr(defaults, name):
                yield f"{section}.{name}"


def _without_effect(name: str, why: str, remedy: str = "remove it") -> Finding:
    return Finding(severity="warning", subject=name, fault=f"has no effect, since {why}", remedy=remedy)


def _more_than(name: str, number: int, most: int, what: str) -> Finding:
    return Finding(
        severity="warning", subject=name, fault=f"{number} is more than the {most} {what}", remedy=f"set it to {most}"
    )


def _are(count: int) -> str:
    return "is one" if count == 1 else f"are {count}"
