"""Each broken setup is named as what it is, with what to do about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from exl3_folder import LLAMA, linear, write_config, write_exl3_llama, write_safetensors, write_text_files
from preflight_run import GIB, MIB, findings, gpu, machine, only, settings

from exllamav3_adapters.engine_settings import DraftOptions, LoraOptions, MemoryOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.machine import Disk
from exllamav3_adapters.preflight.run import early_findings, preflight, refuse


def says(finding: Finding, severity: str, subject: str, fault: str, remedy: str) -> None:
    assert (finding.severity, finding.subject) == (severity, subject), str(finding)
    assert fault in finding.fault
    assert remedy in finding.remedy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small whole model that a test may break."""
    return write_exl3_llama(tmp_path / "model", num_hidden_layers=1, vocab_size=259)


def test_a_good_setup_has_no_findings(llama: Path) -> None:
    assert findings(settings(llama)) == []


# The machine


def test_a_cpu_build_of_torch(llama: Path) -> None:
    found = only(findings(settings(llama), machine(torch="2.11.0+cpu", cuda=None)))
    says(found, "error", "torch", "2.11.0+cpu is built for CPUs", "driver's CUDA")


def test_no_torch(llama: Path) -> None:
    found = findings(
        settings(llama), machine(torch=None, cuda=None, gpus=(), cuda_error="libcudart.so.13: no such file")
    )
    says(found[0], "error", "torch", "cannot be imported (libcudart.so.13: no such file)", "pytorch.org")


def test_a_build_of_torch_for_rocm(llama: Path) -> None:
    found = only(findings(settings(llama), machine(cuda=None, rocm="7.0")))
    says(found, "error", "torch", "ROCm 7.0", "engine: cpu")


def test_no_driver(llama: Path) -> None:
    found = only(findings(settings(llama), machine(driver=None, gpus=())))
    says(found, "error", "GPU", "no NVIDIA driver is loaded", "--gpus all")


def test_a_driver_without_a_card_that_torch_can_use(llama: Path) -> None:
    broken = machine(gpus=(), driver="525.1", cuda_error="The NVIDIA driver on your system is too old")
    found = only(findings(settings(llama), broken))
    says(found, "error", "GPU", "525.1 (The NVIDIA driver on your system is too old)", "CUDA_VISIBLE_DEVICES")


def test_a_card_that_is_too_old(llama: Path) -> None:
    found = only(findings(settings(llama), machine(gpus=(gpu(capability=(6, 1), name="GTX 1080"),))))
    says(found, "error", "cuda:0 (GTX 1080)", "compute capability 6.1", "CUDA_VISIBLE_DEVICES")


def test_a_card_that_is_not_new_is_a_warning(llama: Path) -> None:
    found = only(findings(settings(llama), machine(gpus=(gpu(capability=(7, 5), name="RTX 2080"),))))
    says(found, "warning", "cuda:0 (RTX 2080)", "slower kernels", "8.0")


def test_exllamav3_is_not_installed(llama: Path) -> None:
    found = only(findings(settings(llama), machine(exllamav3=None, extension="missing")))
    says(found, "error", "exllamav3", "is not installed", "pip install litellm-exllamav3[cuda]")


def test_neither_an_extension_nor_a_toolkit_to_build_it(llama: Path) -> None:
    found = only(findings(settings(llama), machine(extension="missing", host_compiler="/usr/bin/c++")))
    says(found, "error", "exllamav3", "the CUDA toolkit (nvcc) to build it with cannot be found", "install the wheel")


def test_a_toolkit_of_another_cuda_than_torchs(llama: Path) -> None:
    broken = machine(extension="missing", nvcc="/usr/bin/nvcc", nvcc_cuda="12.4", host_compiler="/usr/bin/c++")
    found = only(findings(settings(llama), broken))
    says(found, "error", "exllamav3", "of CUDA 12.4 cannot build one for a torch of CUDA 13.0", "toolkit of CUDA 13.0")


def test_a_first_import_that_will_compile_is_announced(llama: Path) -> None:
    able = machine(extension="missing", nvcc="/usr/local/cuda/bin/nvcc", host_compiler="/usr/bin/c++")
    found = only(findings(settings(llama), able))
    says(found, "warning", "exllamav3", "takes minutes on 16 cores", "wait for it once")


def test_another_release_of_exllamav3_is_a_warning(llama: Path) -> None:
    found = only(findings(settings(llama), machine(exllamav3="1.4.1")))
    says(found, "warning", "exllamav3", "1.4.1", "exllamav3==1.6.5")


# The folder


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    found = only(findings(settings(tmp_path / "nowhere")))
    says(found, "error", "model.model_dir", f"there is no folder {tmp_path / 'nowhere'}", "correct the path")


def test_a_folder_of_folders(folder: Path) -> None:
    found = only(findings(settings(folder.parent)))
    says(found, "error", "model.model_dir", "only folders", "set model_name to one of model")


@pytest.mark.parametrize(("method", "name"), [("exl2", "EXL2"), ("gptq", "GPTQ"), ("awq", "AWQ"), ("fp8", "FP8")])
def test_another_quantisation_by_its_config(folder: Path, method: str, name: str) -> None:
    write_config(folder, LLAMA, method)
    found = only(findings(settings(folder)))
    says(found, "error", "model.model_dir", f"are {name}, not EXL3", "convert.py")


def test_exl2_without_a_word_of_it_in_the_config(folder: Path) -> None:
    write_config(folder, LLAMA, None)
    layer = "model.layers.0.mlp.up_proj"
    tensors = {f"{layer}.q_weight": ("I32", (8, 8)), f"{layer}.q_invperm": ("I16", (8,))}
    write_safetensors(folder / "model.safetensors", tensors)
    assert "are EXL2, not EXL3" in only(findings(settings(folder))).fault


def test_gguf(tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    says(only(errors(tmp_path)), "error", "model.model_dir", "are GGUF, not EXL3", "EXL3")


def test_weights_that_are_not_quantised_are_a_warning(folder: Path) -> None:
    write_config(folder, LLAMA | {"num_hidden_layers": 1, "vocab_size": 259}, None)
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": ("BF16", (259, 4096))})
    found = findings(settings(folder))
    says(found[0], "warning", "model.model_dir", "not quantised", "EXL3 version")


def test_shards_that_are_missing(folder: Path) -> None:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    found = only(findings(settings(folder)))
    says(found, "error", "model.model_dir", "1 of the 2 files", "finish the download")
    assert "model-00002-of-00002.safetensors" in found.fault


def test_a_shard_that_is_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    says(only(findings(settings(folder))), "error", "model.model_dir", "is cut short", "download it again")


def test_a_pointer_of_git_lfs(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    says(only(findings(settings(folder))), "error", "model.model_dir", "Git LFS pointer", "download it again")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json is missing" in only(findings(settings(folder))).fault


def test_a_config_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "config.json is not valid JSON" in only(findings(settings(folder))).fault


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    says(only(findings(settings(folder))), "error", "model.model_dir", "has no tokenizer", "original model's folder")


def test_no_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    says(only(findings(settings(folder))), "error", "model.chat_template", "no chat template in", "a Jinja template")


def test_an_architecture_that_exllamav3_does_not_have(folder: Path) -> None:
    write_config(folder, LLAMA | {"architectures": ["Qwen33ForCausalLM"]})
    found = only(findings(settings(folder)))
    says(found, "error", "model.model_dir", "the architecture Qwen33ForCausalLM", "use another model")
    assert "Qwen3ForCausalLM" in found.fault


# Options


@pytest.mark.parametrize("option", ["cache_size", "chunk_size", "shared_chunk_size"])
def test_sizes_that_are_no_multiple_of_a_page(llama: Path, option: str) -> None:
    found = findings(settings(llama, **{"max_seq_len": 1000, option: 1100}))
    says(found[0], "error", f"model.{option}", "1100 tokens are not a multiple of 256", "set it to 1024")


def test_a_chunk_larger_than_the_cache(llama: Path) -> None:
    found = only(findings(settings(llama, max_seq_len=512, cache_size=512, chunk_size=1024)))
    says(found, "error", "model.chunk_size", "more than model.cache_size (512)", "set it to 512")


def test_a_context_longer_than_the_model_was_made_for(llama: Path) -> None:
    found = only(findings(settings(llama, max_seq_len=262144, cache_size=262144)))
    says(found, "error", "model.max_seq_len", "more than the 131072 tokens", "")


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({"tensor_parallel": True, "moe_cpu_offload": 2}, "model.moe_cpu_offload"),
        ({"tensor_parallel": True, "moe_cpu_split": 2}, "model.moe_cpu_split"),
    ],
)
def test_options_that_exclude_each_other(llama: Path, options: dict[str, int], subject: str) -> None:
    found = [finding for finding in findings(settings(llama, **options)) if finding.severity == "error"]
    says(only(found), "error", subject, "cannot be combined with model.tensor_parallel", "remove one")


def test_a_split_over_more_gpus_than_there_are(llama: Path) -> None:
    found = only(findings(settings(llama, gpu_split=(10.0, 10.0, 10.0)), machine(gpus=(gpu(), gpu()))))
    says(found, "error", "model.gpu_split", "on 3 GPUs, and there are 2", "give 2 numbers")


def test_tensor_parallel_on_one_gpu(llama: Path) -> None:
    found = only(findings(settings(llama, tensor_parallel=True)))
    says(found, "warning", "model.tensor_parallel", "there is one GPU", "remove it")


def test_experts_on_the_cpu_of_a_dense_model(llama: Path) -> None:
    found = only(findings(settings(llama, moe_cpu_offload=4)))
    says(found, "warning", "model.moe_cpu_offload", "LlamaForCausalLM has no experts", "remove it")


def test_recurrent_options_on_a_dense_model(llama: Path) -> None:
    given = settings(llama, MemoryOptions(sysmem_recurrent_cache=100), recurrent_eviction="gds", max_history=4)
    found = findings(given)
    assert {finding.subject for finding in found} == {
        "model.recurrent_eviction",
        "model.max_history",
        "memory.sysmem_recurrent_cache",
    }
    assert all("has no recurrent layers" in finding.fault for finding in found)


def test_images_for_a_model_that_sees_none(llama: Path) -> None:
    found = only(findings(settings(llama, vision=True)))
    says(found, "error", "model.vision", "has no vision component", "remove the option")


def test_a_draft_by_a_head_that_the_model_does_not_have(llama: Path) -> None:
    found = only(findings(settings(llama, draft=DraftOptions(draft_mode="mtp"))))
    assert "has no head to draft with" in found.fault


def test_a_draft_model_that_is_not_there(llama: Path, tmp_path: Path) -> None:
    draft = DraftOptions(draft_mode="model", draft_model_dir=str(tmp_path / "draft"))
    found = only(findings(settings(llama, draft=draft)))
    says(found, "error", "draft_model.draft_model_dir", "there is no folder", "correct the path")


def test_draft_options_without_a_draft(llama: Path) -> None:
    draft = DraftOptions(draft_num_tokens=4, draft_cache_mode="8,8")
    found = findings(settings(llama, draft=draft))
    assert [finding.subject for finding in found] == ["draft_model.draft_num_tokens", "draft_model.draft_cache_mode"]
    says(found[0], "warning", "draft_model.draft_num_tokens", "draft_mode: disabled", "set draft_model.draft_mode")


def test_a_lora_that_is_no_adapter(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    found = only(findings(settings(llama, loras=(LoraOptions(folder=str(tmp_path)),))))
    says(found, "error", "lora.loras", "is no LoRA adapter", "PEFT")


# Tiers


def test_a_tier_that_system_memory_cannot_hold(llama: Path) -> None:
    found = only(findings(settings(llama, MemoryOptions(sysmem_kv_cache=60 * 1024)), machine(memory_free=32 * GIB)))
    says(found, "error", "memory.sysmem_kv_cache", "60.00 GiB are asked for", "lower it to 30720 MiB")


def test_a_tier_beyond_what_may_be_locked(llama: Path) -> None:
    found = only(findings(settings(llama, MemoryOptions(sysmem_kv_cache=4096)), machine(lockable=8 * MIB)))
    says(found, "warning", "memory.sysmem_kv_cache", "may lock 8 MiB (RLIMIT_MEMLOCK)", "ulimit -l unlimited")


def test_a_tier_smaller_than_two_pages(llama: Path) -> None:
    found = only(findings(settings(llama, MemoryOptions(sysmem_kv_cache=40))))
    says(found, "error", "memory.sysmem_kv_cache", "less than 2 pages of this model (32 MiB each)", "set it to 64")


def disk_tier(size: int = 51200) -> MemoryOptions:
    return MemoryOptions(sysmem_kv_cache=1024, disk_cache_dir="/tiers", disk_cache_size=size)


def test_a_full_disk(llama: Path) -> None:
    found = only(findings(settings(llama, disk_tier()), machine(disk=Disk(free=10 * MIB))))
    says(found, "error", "memory.disk_cache_dir", "is full: 10 MiB are free", "another disk")


def test_a_disk_that_will_be_full_before_the_tier_is(llama: Path) -> None:
    found = only(findings(settings(llama, disk_tier()), machine(disk=Disk(free=10 * GIB))))
    says(found, "warning", "memory.disk_cache_size", "has 10.00 GiB for it", "lower it to 9216 MiB")


def test_a_disk_that_the_tier_fills_itself_is_no_fault(llama: Path) -> None:
    full = Disk(free=10 * MIB, used_by_tier=51200 * MIB)
    assert findings(settings(llama, disk_tier()), machine(disk=full)) == []


def test_a_folder_that_cannot_be_written(llama: Path) -> None:
    broken = machine(disk=Disk(free=100 * GIB, obstacle="/tiers is not writable by this user"))
    found = only(findings(settings(llama, disk_tier()), broken))
    says(found, "error", "memory.disk_cache_dir", "cannot be written", "another folder")


def test_a_disk_tier_without_the_one_before_it(llama: Path) -> None:
    found = only(findings(settings(llama, MemoryOptions(disk_cache_dir="/tiers"))))
    says(found, "error", "memory.disk_cache_dir", "memory.sysmem_kv_cache: 0", "set memory.sysmem_kv_cache")


# All together


def test_several_faults_are_told_at_once(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    found = findings(settings(folder, chunk_size=1000), machine(torch="2.11.0+cpu", cuda=None))
    assert [finding.subject for finding in found] == ["torch", "model.model_dir", "model.chunk_size"]


def test_a_load_is_refused_with_all_errors_and_no_warning(folder: Path) -> None:
    shutil.rmtree(folder)
    given = settings(folder, chunk_size=1000, tensor_parallel=True)
    with pytest.raises(LoadFailed, match=r"model 'm': model\.model_dir: .*model\.chunk_size: ") as refusal:
        refuse(given, early_findings(given, machine()))
    assert "tensor_parallel" not in str(refusal.value)


def errors(path: Path) -> list[Finding]:
    return [finding for finding in findings(settings(path)) if "tokenizer" not in finding.fault][:1]


def test_experts_that_the_cpu_cannot_compute(tmp_path: Path) -> None:
    found = findings(settings(write_mixture(tmp_path, mul1=False), moe_cpu_offload=1))
    says(only(found), "warning", "model.moe_cpu_offload", "mul1", "use a version of the model")


def test_more_layers_on_the_cpu_than_there_are(tmp_path: Path) -> None:
    found = findings(settings(write_mixture(tmp_path, mul1=True), moe_cpu_offload=5))
    says(only(found), "warning", "model.moe_cpu_offload", "5 is more than the 2", "set it to 2")


def write_mixture(folder: Path, *, mul1: bool) -> Path:
    """A Qwen3 of two layers and eight experts."""
    config = LLAMA | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "vocab_size": 259,
        "hidden_size": 1024,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    write_config(folder, config)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": ("F16", (259, 1024))}
    for layer in range(2):
        for expert in range(8):
            key = f"model.layers.{layer}.mlp.experts.{expert}"
            for name, inputs, outputs in (("gate", 1024, 512), ("up", 1024, 512), ("down", 512, 1024)):
                tensors |= linear(f"{key}.{name}_proj", inputs, outputs, mul1=mul1)
    write_safetensors(folder / "model.safetensors", tensors)
    write_text_files(folder)
    return folder


def test_a_model_without_a_tokenizer_is_estimated_all_the_same(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert preflight(settings(folder), machine()).estimate is not None


def test_a_config_that_exllamav3_cannot_read(folder: Path) -> None:
    write_config(folder, LLAMA | {"hidden_size": "large"})
    found = only(findings(settings(folder)))
    says(found, "error", "model.model_dir", "exllamav3 cannot read the model", "compare the folder with that of the")
