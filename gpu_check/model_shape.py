"""Sizes of the random models: on a card the smallest that EXL3 quantises without padding, on a CPU tiny ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MAX_POSITIONS: Final = 32768
"""Tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaShape:
    """EXL3 stores a linear layer in tiles of 128 by 128: on a card all sizes are multiples of it."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int

    def config(self) -> dict[str, Any]:
        """As Hugging Face writes `config.json`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": MAX_POSITIONS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "float16",
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridShape:
    """A Qwen3-Next: every second layer is attention, the others gated delta nets; each has experts."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    linear_key_heads: int
    linear_value_heads: int
    linear_head_size: int
    experts: int
    experts_per_token: int
    expert_mlp: int

    def is_attention(self, layer: int) -> bool:
        return layer % 2 == 1

    def config(self) -> dict[str, Any]:
        """As Hugging Face writes `config.json`."""
        kinds = ["full_attention" if self.is_attention(layer) else "linear_attention" for layer in range(self.layers)]
        return {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.expert_mlp,
            "num_hidden_layers": self.layers,
            "layer_types": kinds,
            "full_attention_interval": 2,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": self.linear_key_heads,
            "linear_num_value_heads": self.linear_value_heads,
            "linear_key_head_dim": self.linear_head_size,
            "linear_value_head_dim": self.linear_head_size,
            "num_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "moe_intermediate_size": self.expert_mlp,
            "shared_expert_intermediate_size": self.expert_mlp,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": MAX_POSITIONS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.25},
            "use_sliding_window": False,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "float16",
        }


CARD_LLAMA: Final = LlamaShape(vocabulary=4096, hidden=1024, layers=8, heads=8, kv_heads=2, head_size=128, mlp=3072)
CARD_HYBRID: Final = HybridShape(
    vocabulary=4096,
    hidden=512,
    layers=4,
    heads=4,
    kv_heads=2,
    head_size=128,
    linear_key_heads=2,
    linear_value_heads=8,
    linear_head_size=128,
    experts=32,
    experts_per_token=4,
    expert_mlp=128,
)
TINY_LLAMA: Final = LlamaShape(vocabulary=1024, hidden=64, layers=2, heads=4, kv_heads=2, head_size=16, mlp=96)
TINY_HYBRID: Final = HybridShape(
    vocabulary=1024,
    hidden=64,
    layers=4,
    heads=4,
    kv_heads=2,
    head_size=16,
    linear_key_heads=2,
    linear_value_heads=8,
    linear_head_size=64,
    experts=4,
    experts_per_token=2,
    expert_mlp=32,
)
