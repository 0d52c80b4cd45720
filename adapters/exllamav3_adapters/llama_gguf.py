"""Llama-like GGUF files as Hugging Face model folders. Used for the demo model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# Tokens that GGUF calls control or user defined.
_CONTROL_TOKEN_TYPES: Final = (3, 4)
_TENSOR_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_model_files(source: Path, folder: Path) -> None:
    """Writes weights, configs and tokenizer of the GGUF file `source` into `folder`, under transformers' names.

    Raises ImportError where gguf, safetensors or tokenizers is missing, and ValueError, KeyError or IndexError for a
    file that is damaged or of another architecture.
    """
    from gguf import GGUFReader

    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _write_weights(reader, fields, folder / "model.safetensors")
    write_json(folder / "config.json", _model_config(fields))
    write_json(folder / "generation_config.json", _generation_config(fields))
    _write_tokenizer(fields, folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_weights(reader: Any, fields: Mapping[str, Any], path: Path) -> None:
    """Every tensor in float16, under transformers' names. The head shares the embeddings, as in the original."""
    import numpy as np
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            weight = _rotary_halves(weight, int(heads[kind]))
        tensors[_tensor_name(tensor.name)] = np.ascontiguousarray(weight.astype(np.float16))
    save_file(tensors, path, metadata={"format": "pt"})


def _tensor_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, index, kind, suffix = name.split(".")
    return f"model.layers.{index}.{_TENSOR_NAMES[kind]}.{suffix}"


def _rotary_halves(weight: Any, heads: int) -> Any:
    """Rows of a query or key projection from llama.cpp's order (pairs interleaved) to transformers' (two halves)."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)


def _model_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(fields["llama.vocab_size"]),
        "hidden_size": int(fields["llama.embedding_length"]),
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": int(fields["llama.attention.head_count"]),
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": int(fields["llama.rope.dimension_count"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": round(float(fields["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
        "dtype": "float16",
    }


def _generation_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
    }


def _control_tokens(fields: Mapping[str, Any]) -> dict[int, str]:
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    pairs = enumerate(zip(tokens, kinds, strict=True))
    return {index: token for index, (token, kind) in pairs if kind in _CONTROL_TOKEN_TYPES}


def _write_tokenizer(fields: Mapping[str, Any], path: Path) -> None:
    """Byte-level BPE that splits digits, as the GGUF's pre-tokenizer `smollm` says."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    split_digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_to_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split_digits, bytes_to_text])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in _control_tokens(fields).values()]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(path))


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    added = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, token in _control_tokens(fields).items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added,
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": int(fields["llama.context_length"]),
    }
