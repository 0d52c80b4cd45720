"""Model folders with random weights, as they are published: safetensors in 16 bits, tokenizer, chat template."""

from __future__ import annotations

import json
import math
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

import exllamav3_adapters
from gpu_check.model_shape import HybridShape, LlamaShape
from gpu_check.random_tokenizer import SPECIAL_TOKENS, write_tokenizer

_LIKELY_WORDS: Final = 64
_LIKELY_SPREAD, _SPREAD = 3.0, 0.7
"""Standard deviation of the logits of those words and of all others, in nats. So an answer is words, and rounding
seldom decides between the best two."""
_ATTENTION_SCALE: Final = 1.4
"""Of queries and keys: their products then spread by its square, so that attention is neither even nor a copy."""
_WORD: Final = re.compile("Ġ[a-z]{2,}")


def write_random_model(folder: Path, shape: LlamaShape | HybridShape) -> None:
    """The same weights for the same shape, on every machine. The config comes last: without it nothing is there."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder, shape.vocabulary)
    template = Path(exllamav3_adapters.__file__).with_name("demo_chat_template.jinja")
    shutil.copyfile(template, folder / "chat_template.jinja")
    tensors = dict(_llama(shape) if isinstance(shape, LlamaShape) else _hybrid(shape))
    tensors["lm_head.weight"] = _head(shape.hidden, vocabulary)
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))


Tensors = Iterator[tuple[str, torch.Tensor]]


def _llama(shape: LlamaShape) -> Tensors:
    yield from _ends(shape, norm=1.0)
    for layer in range(shape.layers):
        key = f"model.layers.{layer}"
        yield from _norms(key, shape.hidden, 1.0)
        yield from _attention(f"{key}.self_attn", shape, query_parts=1)
        yield from _gated_mlp(f"{key}.mlp", shape.hidden, shape.mlp)


def _hybrid(shape: HybridShape) -> Tensors:
    """Its norms, all but those of the delta nets, store how far their weights are from 1."""
    yield from _ends(shape, norm=0.0)
    for layer in range(shape.layers):
        key = f"model.layers.{layer}"
        yield from _norms(key, shape.hidden, 0.0)
        if shape.is_attention(layer):
            yield from _attention(f"{key}.self_attn", shape, query_parts=2)  # queries and the gate of the answer
            for name in ("q_norm", "k_norm"):
                yield f"{key}.self_attn.{name}.weight", torch.zeros(shape.head_size)
        else:
            yield from _delta_net(f"{key}.linear_attn", shape)
        yield _linear(f"{key}.mlp.gate", shape.hidden, shape.experts, 2.0)
        yield _linear(f"{key}.mlp.shared_expert_gate", shape.hidden, 1)
        yield from _gated_mlp(f"{key}.mlp.shared_expert", shape.hidden, shape.expert_mlp)
        for expert in range(shape.experts):
            yield from _gated_mlp(f"{key}.mlp.experts.{expert}", shape.hidden, shape.expert_mlp)


def _ends(shape: LlamaShape | HybridShape, norm: float) -> Tensors:
    yield _normal("model.embed_tokens.weight", (shape.vocabulary, shape.hidden), 1.0)
    yield "model.norm.weight", torch.full((shape.hidden,), norm)


def _norms(key: str, hidden: int, value: float) -> Tensors:
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{key}.{name}.weight", torch.full((hidden,), value)


def _attention(key: str, shape: LlamaShape | HybridShape, query_parts: int) -> Tensors:
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    yield _linear(f"{key}.q_proj", shape.hidden, queries * query_parts, _ATTENTION_SCALE)
    yield _linear(f"{key}.k_proj", shape.hidden, keys, _ATTENTION_SCALE)
    yield _linear(f"{key}.v_proj", shape.hidden, keys)
    yield _linear(f"{key}.o_proj", queries, shape.hidden, 2.0)


def _delta_net(key: str, shape: HybridShape) -> Tensors:
    keys = shape.linear_key_heads * shape.linear_head_size
    values = shape.linear_value_heads * shape.linear_head_size
    yield _linear(f"{key}.in_proj_qkvz", shape.hidden, 2 * keys + 2 * values)
    yield _linear(f"{key}.in_proj_ba", shape.hidden, 2 * shape.linear_value_heads)
    yield _normal(f"{key}.conv1d.weight", (2 * keys + values, 1, 4), 0.5)
    # Half-lives from some ten to some hundred tokens: what was read long ago still counts.
    yield f"{key}.A_log", torch.linspace(-4.0, -1.5, shape.linear_value_heads)
    yield f"{key}.dt_bias", torch.ones(shape.linear_value_heads)
    yield f"{key}.norm.weight", torch.ones(shape.linear_head_size)
    yield _linear(f"{key}.out_proj", values, shape.hidden, 2.0)


def _gated_mlp(key: str, hidden: int, inner: int) -> Tensors:
    yield _linear(f"{key}.gate_proj", hidden, inner)
    yield _linear(f"{key}.up_proj", hidden, inner)
    yield _linear(f"{key}.down_proj", inner, hidden)


def _head(hidden: int, vocabulary: dict[str, int]) -> torch.Tensor:
    """(vocabulary, hidden), for normalised hidden states: some words are likely, special tokens are not."""
    _, head = _normal("lm_head.weight", (len(vocabulary), hidden), _SPREAD / math.sqrt(hidden))
    words = sorted(index for token, index in vocabulary.items() if _WORD.fullmatch(token))
    assert len(words) >= _LIKELY_WORDS, "a vocabulary of a thousand tokens has that many words"
    head[words[:: len(words) // _LIKELY_WORDS][:_LIKELY_WORDS]] *= _LIKELY_SPREAD / _SPREAD
    head[[vocabulary[token] for token in SPECIAL_TOKENS]] = 0.0
    return head


def _linear(key: str, inputs: int, outputs: int, scale: float = 1.0) -> tuple[str, torch.Tensor]:
    """Keeps the size of its input, times `scale`."""
    return _normal(f"{key}.weight", (outputs, inputs), scale / math.sqrt(inputs))


def _normal(name: str, size: tuple[int, ...], deviation: float) -> tuple[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return name, torch.randn(size, generator=generator) * deviation
