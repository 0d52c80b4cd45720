"""What a model is said to take, against what exllamav3's own layers allocate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from exl3_folder import LLAMA, write_config, write_safetensors
from exllamav3 import Cache, CacheLayer_fp16, CacheLayer_quant
from preflight_run import settings

from exllamav3_adapters.cuda.layout import Layout, lay_out
from exllamav3_adapters.cuda.memory_costs import CACHE_MODES, memory_costs
from exllamav3_adapters.preflight.model_costs import ModelCosts

PAGES, SLOTS, HISTORY = 4, 3, 5

SMALL = LLAMA | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
HYBRID = SMALL | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}
SLIDING = SMALL | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 64,
    "rope_local_base_freq": 10000.0,
    "hidden_activation": "gelu_pytorch_tanh",
}
RINGS = SMALL | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
LATENT = SMALL | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
CONVOLUTIONS = SMALL | {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "block_auto_adjust_ff_dim": False,
}
MODELS = {
    "Llama": SMALL | {"num_hidden_layers": 2},
    "Qwen3": SMALL | {"num_hidden_layers": 2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "Qwen3-Next": HYBRID,
    "Gemma 3": SLIDING,
    "gpt-oss": RINGS,
    "DeepSeek V3": LATENT,
    "LFM2": CONVOLUTIONS,
}


@pytest.fixture(params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The model's files, without most of its weights: layers know their caches from the config."""
    write_config(tmp_path, MODELS[request.param])
    write_safetensors(tmp_path / "model.safetensors", {"model.embed_tokens.weight": ("F16", (512, 256))})
    return tmp_path


def asked(folder: Path, **options: Any) -> tuple[Layout, ModelCosts]:
    given = settings(folder, max_seq_len=PAGES * 256, cache_size=PAGES * 256, max_history=HISTORY, **options)
    layout = lay_out(given, folder)
    return layout, memory_costs(given, layout)


def allocated(layers: Iterable[Any]) -> int:
    """Bytes of all tensors that the layers hold once they are allocated."""
    total = 0
    for layer in layers:
        layer.alloc(torch.device("cpu"))
        total += sum(value.nbytes for value in vars(layer).values() if isinstance(value, torch.Tensor))
    return total


@pytest.mark.parametrize("mode", CACHE_MODES)
def test_a_page_takes_what_the_cache_layers_allocate(folder: Path, mode: str) -> None:
    layout, costs = asked(folder)
    bits = {} if mode == "FP16" else dict(zip(("k_bits", "v_bits"), map(int, mode.split(",")), strict=True))
    layers = CacheLayer_quant if bits else CacheLayer_fp16
    cache = Cache(layout.model, PAGES * 256, layer_type=layers, **bits)
    said = sum(module.page.get(mode, 0) for module in costs.main.modules)
    assert said * PAGES == allocated(cache.layers.values())


def test_slots_take_what_the_recurrent_layers_allocate(folder: Path) -> None:
    layout, costs = asked(folder)
    cache = Cache(layout.model, 256, max_batch_size=SLOTS, max_history=HISTORY, recurrent_dtype=torch.half)
    said = sum(module.slot + module.history for module in costs.main.modules)
    assert said * SLOTS == allocated(cache.recurrent_layers.values())


def test_a_model_whose_states_roll_back_pays_for_it_in_every_slot(tmp_path: Path) -> None:
    write_config(tmp_path, HYBRID)
    _, costs = asked(tmp_path)
    assert all((module.history > 0) == (module.slot > 0) for module in costs.main.modules)
    assert costs.main.is_recurrent


def test_states_of_32_bits_take_more(tmp_path: Path) -> None:
    write_config(tmp_path, HYBRID)
    _, half = asked(tmp_path)
    _, single = asked(tmp_path, recurrent_state_fp32=True)
    assert single.checkpoint > half.checkpoint
    assert sum(module.slot for module in single.main.modules) > sum(module.slot for module in half.main.modules)


@pytest.mark.parametrize("config", [HYBRID, CONVOLUTIONS], ids=["Qwen3-Next", "LFM2"])
def test_a_checkpoint_takes_what_a_state_stashes(tmp_path: Path, config: dict[str, Any]) -> None:
    write_config(tmp_path, config)
    layout, costs = asked(tmp_path)
    cache = Cache(layout.model, 256, max_batch_size=1, max_history=HISTORY, recurrent_dtype=torch.half)
    allocated(cache.recurrent_layers.values())
    assert costs.checkpoint == tensor_bytes(cache.get_new_state().stash())


def tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(tensor_bytes, entries))


def test_asking_leaves_no_cache_on_the_model(folder: Path) -> None:
    layout, _ = asked(folder)
    assert layout.model.cache_weakrefs == {}
    assert not any(getattr(module, "cache_layers", []) for module in layout.model)
    assert not any(getattr(module, "recurrent_layers", []) for module in layout.model)


def test_weights_are_those_of_the_files(llama: Path) -> None:
    given = settings(llama)
    costs = memory_costs(given, lay_out(given, llama))
    header_and_length = sum(file.stat().st_size for file in llama.glob("*.safetensors"))
    said = sum(module.weights for module in costs.main.modules)
    assert header_and_length - 200_000 < said < header_and_length
    (embedding,) = (module for module in costs.main.modules if module.on_host)
    assert embedding.weights == 128256 * 4096 * 2


def test_the_largest_forward_of_a_layer_is_exllamav3s_figure(llama: Path) -> None:
    given = settings(llama, chunk_size=1024)
    layout = lay_out(given, llama)
    layer = memory_costs(given, layout).main.modules[1]
    parts = layout.model.modules[1].make_tp_allocation({})
    assert layer.transient == max(part.overhead(1024, part.channels_to_split, part.channels_to_split) for part in parts)


def test_a_model_of_experts_says_how_many_layers_can_leave_the_gpu(tmp_path: Path) -> None:
    write_config(tmp_path, HYBRID)
    _, costs = asked(tmp_path)
    assert (costs.expert_layers, costs.experts_per_layer, costs.offloadable_layers) == (8, 8, 0)


def test_the_head_makes_few_rows_without_unpacking_its_weights(llama: Path) -> None:
    given = settings(llama)
    head = memory_costs(given, lay_out(given, llama)).main.modules[-1]
    assert 0 < head.transient < head.weights // 10
