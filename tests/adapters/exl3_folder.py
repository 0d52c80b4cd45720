"""Folders of EXL3 models as they lie on a disk, of any size: the files are sparse, so a header costs no more."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_model import write_tokenizer

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> (dtype, shape)."""

_ITEM_BYTES = {"F16": 2, "I16": 2, "I32": 4, "F32": 4, "BF16": 2}
BITS = 4

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Llama 3.1 8B."""


def write_safetensors(path: Path, tensors: Tensors) -> None:
    entries: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * _ITEM_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)


def linear(key: str, inputs: int, outputs: int, *, mul1: bool = False) -> Tensors:
    """One layer as exllamav3 quantises it."""
    marker: dict[str, tuple[str, tuple[int, ...]]] = {f"{key}.mul1": ("I32", ())} if mul1 else {}
    return {
        f"{key}.trellis": ("I16", (inputs // 16, outputs // 16, 16 * BITS)),
        f"{key}.suh": ("F16", (inputs,)),
        f"{key}.svh": ("F16", (outputs,)),
        **marker,
    }


def llama_tensors(config: Mapping[str, Any]) -> Tensors:
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("F16", (config["vocab_size"], hidden)),
        "model.norm.weight": ("F16", (hidden,)),
        **linear("lm_head", hidden, config["vocab_size"]),
    }
    for index in range(config["num_hidden_layers"]):
        key = f"model.layers.{index}"
        found[f"{key}.input_layernorm.weight"] = found[f"{key}.post_attention_layernorm.weight"] = ("F16", (hidden,))
        for name, inputs, outputs in (
            ("self_attn.q_proj", hidden, queries),
            ("self_attn.k_proj", hidden, keys),
            ("self_attn.v_proj", hidden, keys),
            ("self_attn.o_proj", queries, hidden),
            ("mlp.gate_proj", hidden, mlp),
            ("mlp.up_proj", hidden, mlp),
            ("mlp.down_proj", mlp, hidden),
        ):
            found |= linear(f"{key}.{name}", inputs, outputs)
    return found


def write_config(folder: Path, config: Mapping[str, Any], quant_method: str | None = "exl3") -> None:
    section = {"quantization_config": {"quant_method": quant_method, "bits": BITS}} if quant_method else {}
    (folder / "config.json").write_text(json.dumps({**config, **section}))


def write_text_files(folder: Path) -> None:
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")


def write_exl3_llama(folder: Path, **changes: Any) -> Path:
    """A whole model folder of Llama 3.1 8B's shape at 4 bits a weight, with `changes` to its config."""
    folder.mkdir(parents=True, exist_ok=True)
    config = LLAMA | changes
    write_config(folder, config)
    write_safetensors(folder / "model.safetensors", llama_tensors(config))
    write_text_files(folder)
    return folder
