"""A model folder with random weights and one token a byte: small enough to load in every test that needs one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_tokenizer(folder: Path, special_tokens: Sequence[str] = ()) -> None:
    """One token a byte, and three special ones before them. More of those get the ids behind."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet, *special_tokens])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in (*SPECIAL_TOKENS, *special_tokens)]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_merging_tokenizer(folder: Path, vocab_size: int) -> None:
    """As Llama 3 and Qwen: bytes, merged within words. Random tokens are seldom those that it cuts their text into."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = ["".join(letters) for letters in itertools.product("aeiost", repeat=3)]
    tokenizer.train_from_iterator([" ".join(words), "\n\n system user assistant .\n"], trainer)
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.save(str(folder / "tokenizer.json"))


def write_tiny_model(folder: Path, model_type: str = "llama", **options: Any) -> Path:
    """A model of `model_type` with random weights that are large enough for its attention to matter."""
    torch.manual_seed(0)
    defaults = {
        "vocab_size": 259,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = transformers.AutoConfig.for_model(model_type, **(defaults | options))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


TINY_HYBRID: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mlp_only_layers": [0, 1, 2],
}
"""Of a Qwen3-Next: a gated delta net before and one after an attention layer, so that each feeds the other. No experts:
they would take half of the time."""


def write_tiny_hybrid(folder: Path, **options: Any) -> Path:
    return write_tiny_model(folder, "qwen3_next", **(TINY_HYBRID | options))
