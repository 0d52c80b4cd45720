"""Which calls of exllamav3's a configuration leads to, or which error, and that the installed package takes them.

Form, not function: nothing is loaded here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from exllamav3 import CacheLayer_fp16, CacheLayer_quant
from recording_double import Call, RecordingDouble

from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, LoraOptions, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import LoadFailed

MIB = 1024 * 1024
RESERVE = {"reserve_per_device": [96 / 1024]}
QUANTISED = {"layer_type": CacheLayer_quant}
TENSOR_PARALLEL = {
    "tensor_p": True,
    "tp_backend": "native",
    "tp_options": {"moe_tensor_split": False},
    "tp_dev_limits": {},
}
DISK_DEFAULTS = {
    "disk_cache_size": 51200 * MIB,
    "disk_cache_flush_on_idle": True,
    "disk_cache_checkpoint_interval": 4096,
    "disk_cache_write_interval": 2.0,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is set, what the model is, and what the calls have beyond those of a model on one GPU with no option set."""

    name: str
    model: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)
    loras: tuple[LoraOptions, ...] = ()
    gpus: int = 1
    recurrent: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    split: dict[str, Any] = field(default_factory=lambda: RESERVE)
    cache: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    generator: dict[str, Any] = field(default_factory=dict)
    draft_split: dict[str, Any] = field(default_factory=lambda: RESERVE)
    draft_cache: dict[str, Any] = field(default_factory=dict)
    vision_split: dict[str, Any] = field(default_factory=lambda: RESERVE)
    infer: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


CALLS = [
    Case(name="nothing set"),
    Case(
        name="sizes",
        model={"max_seq_len": 1000, "cache_size": 2048, "chunk_size": 1024, "max_batch_size": 3},
        cache={"max_num_tokens": 2048, "max_batch_size": 3},
        sizes={"max_chunk_size": 1024, "max_batch_size": 3},
        generator={"max_chunk_size": 1024, "max_batch_size": 3},
    ),
    Case(name="a cache of 8 bits", model={"cache_mode": "8,8"}, cache=QUANTISED | {"k_bits": 8, "v_bits": 8}),
    Case(name="a cache of 6 and 5 bits", model={"cache_mode": "6,5"}, cache=QUANTISED | {"k_bits": 6, "v_bits": 5}),
    Case(
        name="prefill beside decoding",
        model={"shared_chunk_size": 256, "prefill_cooldown": 0},
        generator={"shared_chunk_size": 256, "prefill_cooldown": 0},
    ),
    Case(name="what is split has no meaning on one GPU", model={"gpu_split": (20.0,), "tensor_parallel": True}),
    Case(name="a reserve", model={"autosplit_reserve": (512.0,)}, split={"reserve_per_device": [0.5]}),
    Case(name="automatic over two GPUs", gpus=2),
    Case(
        name="a reserve for each of two GPUs",
        gpus=2,
        model={"autosplit_reserve": (1024.0, 256.0)},
        split={"reserve_per_device": [1.0, 0.25]},
    ),
    Case(
        name="the first of three GPUs only",
        gpus=3,
        model={"gpu_split_auto": False},
        split={"reserve_per_device": [96 / 1024, -1.0, -1.0]},
    ),
    Case(name="a split by hand", gpus=2, model={"gpu_split": (17.5, 24.0)}, split={"use_per_device": [17.5, 24.0]}),
    Case(name="tensor parallel", gpus=2, model={"tensor_parallel": True}, split=RESERVE | TENSOR_PARALLEL),
    Case(
        name="tensor parallel by hand",
        gpus=2,
        model={
            "tensor_parallel": True,
            "tensor_parallel_backend": "nccl",
            "tensor_parallel_moe_split": True,
            "tensor_parallel_limits": {"attn": 2, "linear": 1},
            "gpu_split": (20.0, 20.0),
        },
        split={
            "use_per_device": [20.0, 20.0],
            "tensor_p": True,
            "tp_backend": "nccl",
            "tp_options": {"moe_tensor_split": True},
            "tp_dev_limits": {"attn": 2, "linear": 1},
        },
    ),
    Case(name="experts on the CPU", model={"moe_cpu_offload": 12}, infer={"moe_cpu_offload": 12, "moe_cpu_split": 0}),
    Case(name="a part of the experts", model={"moe_cpu_split": 32}, infer={"moe_cpu_offload": 0, "moe_cpu_split": 32}),
    Case(
        name="recurrent layers",
        recurrent=("text",),
        cache={"max_batch_size": 4},
        sizes={"max_batch_size": 4},
        generator={"recurrent_cache_size": 4096 * MIB},
    ),
    Case(
        name="recurrent layers with every option",
        recurrent=("text",),
        model={"max_batch_size": 2, "max_history": 6, "recurrent_state_fp32": True},
        memory={
            "sysmem_recurrent_cache": 64,
            "recurrent_checkpoint_interval": 512,
            "recurrent_checkpoint_interval_pp": 8192,
        },
        cache={"max_batch_size": 2, "max_history": 6, "recurrent_dtype": torch.float},
        sizes={"max_batch_size": 2},
        generator={
            "max_batch_size": 2,
            "recurrent_cache_size": 64 * MIB,
            "recurrent_checkpoint_interval": 512,
            "recurrent_checkpoint_interval_pp": 8192,
        },
    ),
    Case(
        name="every tier",
        memory={"sysmem_kv_cache": 128, "disk_cache_dir": "DISK", "disk_cache_size": 100},
        generator={
            "cpu_cache_size": 128 * MIB,
            "disk_cache_dir": "DISK",
            **(DISK_DEFAULTS | {"disk_cache_size": 100 * MIB}),
        },
    ),
    Case(
        name="intervals of the disk tier",
        memory={
            "sysmem_kv_cache": 128,
            "disk_cache_dir": "DISK",
            "disk_cache_flush_on_idle": False,
            "disk_cache_checkpoint_interval": 0,
            "disk_cache_write_interval": 0.5,
        },
        generator={
            "cpu_cache_size": 128 * MIB,
            "disk_cache_dir": "DISK",
            "disk_cache_size": 51200 * MIB,
            "disk_cache_flush_on_idle": False,
            "disk_cache_checkpoint_interval": 0,
            "disk_cache_write_interval": 0.5,
        },
    ),
    Case(
        name="drafts from repeated text",
        draft={"draft_mode": "ngram", "draft_num_tokens": 6, "ngram_match_min": 3},
        cache={"max_history": 6},
        generator={"ngram_match_min": 3, "num_draft_tokens": 6},
    ),
    Case(
        name="long drafts of repeated text alone",
        draft={"hybrid_draft_tokens": 16},
        recurrent=("text",),
        cache={"max_history": 16, "max_batch_size": 4},
        sizes={"max_batch_size": 4},
        generator={"hybrid_draft_tokens": 16, "recurrent_cache_size": 4096 * MIB},
    ),
    Case(
        name="a draft model",
        draft={"draft_mode": "model", "draft_model_dir": "DRAFT"},
        cache={"max_history": 4},
        draft_cache={"max_history": 4},
    ),
    Case(
        name="a draft model with every option",
        gpus=2,
        model={"gpu_split": (20.0, 24.0), "cache_mode": "6,5"},
        draft={
            "draft_mode": "model",
            "draft_model_dir": "DRAFT",
            "draft_num_tokens": 8,
            "dynamic_draft": True,
            "hybrid_draft_tokens": 16,
            "draft_cache_mode": "4,4",
            "draft_gpu_split": (2.0, 0.0),
        },
        split={"use_per_device": [20.0, 24.0]},
        cache=QUANTISED | {"k_bits": 6, "v_bits": 5, "max_history": 16},
        draft_split={"use_per_device": [2.0, 0.0]},
        draft_cache=QUANTISED | {"k_bits": 4, "v_bits": 4, "max_history": 16},
        generator={"num_draft_tokens": 8, "dynamic_draft_tokens": True, "hybrid_draft_tokens": 16},
    ),
    Case(
        name="the model's own head, on the GPUs that the model has",
        gpus=2,
        components=("mtp",),
        model={"gpu_split": (0.0, 24.0)},
        draft={"draft_mode": "mtp", "draft_num_tokens": 2},
        split={"use_per_device": [0.0, 24.0]},
        draft_split={"reserve_per_device": [-1.0, 0.5]},
        cache={"max_history": 2},
        draft_cache={"max_history": 2},
        generator={"num_draft_tokens": 2},
    ),
    Case(
        name="images beside a tensor parallel model",
        gpus=2,
        components=("vision",),
        model={"vision": True, "tensor_parallel": True},
        split=RESERVE | TENSOR_PARALLEL,
    ),
    Case(name="adapters", loras=(LoraOptions(folder="/loras/a"), LoraOptions(folder="/loras/b", scaling=0.5))),
]

ERRORS = [
    Case(
        name="a split over more GPUs than there are",
        gpus=2,
        model={"gpu_split": (8.0, 8.0, 8.0)},
        error=r"model.gpu_split: gives memory on 3 GPUs, and this machine has 2",
    ),
    Case(
        name="adapters under tensor parallel",
        gpus=2,
        model={"tensor_parallel": True},
        loras=(LoraOptions(folder="/loras/a"),),
        error=r"lora.loras: adapters do not reach a tensor parallel model",
    ),
    Case(name="no head", draft={"draft_mode": "mtp"}, error=r"draft_mode: mtp: LlamaForCausalLM in .* has no head"),
    Case(
        name="a head with recurrent layers",
        components=("mtp",),
        recurrent=("mtp",),
        draft={"draft_mode": "mtp"},
        error=r"draft_mode: mtp: this model's head has recurrent layers",
    ),
    Case(
        name="no vision", model={"vision": True}, error=r"model.vision: LlamaForCausalLM in .* has no vision component"
    ),
    Case(
        name="images beside a draft model",
        components=("vision",),
        model={"vision": True},
        draft={"draft_mode": "model", "draft_model_dir": "DRAFT"},
        error=r"model.vision: exllamav3 reads no images while such a draft model drafts",
    ),
    Case(
        name="a history that is too short",
        recurrent=("text",),
        model={"max_history": 2},
        draft={"draft_mode": "ngram"},
        error=r"model.max_history: 2 tokens are less than the 4 that are drafted a step; set it to 4",
    ),
    Case(
        name="a draft model that is not there",
        draft={"draft_mode": "model", "draft_model_dir": "/nowhere"},
        error=r"draft_model.draft_model_dir: exllamav3 cannot read the model in /nowhere",
    ),
    Case(
        name="a context that is too long",
        model={"max_seq_len": 8192},
        error=r"model.max_seq_len: 8192 is more than the 4096 tokens that the model was made for",
    ),
    Case(
        name="a cache that is too small",
        model={"cache_size": 2048},
        error=r"model.cache_size: 2048 tokens cannot hold one context of 4096",
    ),
    Case(
        name="a shared chunk beyond the chunk",
        model={"shared_chunk_size": 1024},
        error=r"model.shared_chunk_size: 1024 is more than model.chunk_size \(512\)",
    ),
    Case(
        name="adapters that are not for this model",
        loras=(LoraOptions(folder="/loras/other"),),
        error=r"lora.loras: no tensor in /loras/other belongs to a layer of this model",
    ),
]


def settings_of(case: Case, folders: Path) -> EngineSettings:
    places = {"DRAFT": str(folders / "draft"), "DISK": str(folders / "disk")}
    memory, draft = [
        {name: places.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
        for options in (case.memory, case.draft)
    ]
    model = {"chunk_size": 512} | case.model
    return EngineSettings(
        model_key="m",
        model=ModelOptions(model_dir=str(folders / "main"), **model),
        memory=MemoryOptions(**memory),
        draft=DraftOptions(**draft),
        loras=case.loras,
    )


def expected(case: Case, folders: Path) -> list[Call]:
    draft = {"model": "draft", "mtp": "mtp"}.get(case.draft.get("draft_mode", ""))
    vision = "vision" if case.model.get("vision") else None
    cache = {
        "max_num_tokens": 4096,
        "layer_type": CacheLayer_fp16,
        "max_batch_size": 16,
        "max_history": 0,
        "recurrent_dtype": torch.half,
    }
    sizes = {"max_chunk_size": 512, "max_batch_size": 16} | case.sizes
    generator = {"model": "text", "cache": "cache of text", "tokenizer": "tokenizer", "max_chunk_size": 512}
    if "disk_cache_dir" in case.generator:
        generator["disk_cache_dir"] = str(folders / "disk")
    made_generator = {**case.generator, **generator} | ({"max_chunk_size": sizes["max_chunk_size"]})
    calls: list[Call] = [("Config.from_directory", {"directory": str(folders / "main")})]
    if "max_seq_len" in case.model:
        length = {"self": "config", "new_max_position_embeddings": case.model["max_seq_len"]}
        calls.append(("Config.override_dynamic_seq_len", length))
    calls.append(("Model.from_config", {"config": "config", "component": "text"}))
    if draft == "draft":
        calls.append(("Config.from_directory", {"directory": str(folders / "draft")}))
        calls.append(("Model.from_config", {"config": "draft config", "component": "text"}))
    if draft == "mtp":
        calls.append(("Model.from_config", {"config": "config", "component": "mtp"}))
    if vision:
        calls.append(("Model.from_config", {"config": "config", "component": "vision"}))
    calls.append(("Cache", {"model": "text"} | cache | case.cache))
    if draft:
        calls.append(("Cache", {"model": draft} | cache | case.draft_cache))
        made_generator |= {"draft_model": draft, "draft_cache": f"cache of {draft}"}
    calls += [("Tokenizer", {"config": "config"})] * 2
    if vision:
        calls.append(("Model.load_gen", {"self": "vision"} | case.vision_split | sizes))
    if draft:
        calls.append(("Model.load_gen", {"self": draft} | case.draft_split | sizes))
    taps = {"draft_model": draft} if draft else {}
    calls.append(("Model.load_gen", {"self": "text"} | case.split | sizes | taps))
    for lora in case.loras:
        calls.append(("LoRA.from_directory", {"model": "text", "directory": lora.folder, "lora_scaling": lora.scaling}))
    calls.append(("Model.warmup", {"self": "text", "cache": "cache of text", "callback": "a function"} | sizes))
    calls.append(("Generator", made_generator))
    return calls + [("Model.unload", {"self": name}) for name in ("text", draft, vision) if name]


def prepare(double: RecordingDouble, case: Case) -> None:
    double.recurrent, double.components = set(case.recurrent), case.components
    if any("other" in lora.folder for lora in case.loras):
        double.adapter.target_modules = {}


def test_there_are_thirty_configurations_at_least() -> None:
    names = [case.name for case in (*CALLS, *ERRORS)]
    assert len(set(names)) == len(names) >= 30


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_configuration_leads_to_calls_that_the_installed_exllamav3_takes(
    double: RecordingDouble, folders: Path, case: Case
) -> None:
    prepare(double, case)
    double.load(settings_of(case, folders), case.gpus)
    assert double.calls == expected(case, folders)
    assert {name: getattr(double.infer_params, name) for name in case.infer} == case.infer


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case.name)
def test_a_configuration_that_cannot_be_names_the_option(double: RecordingDouble, folders: Path, case: Case) -> None:
    prepare(double, case)
    assert case.error is not None
    with pytest.raises(LoadFailed, match=case.error):
        double.load(settings_of(case, folders), case.gpus)
    loaded = [call["self"] for name, call in double.calls if name == "Model.load_gen"]
    unloaded = [call["self"] for name, call in double.calls if name == "Model.unload"]
    assert set(loaded) <= set(unloaded)
