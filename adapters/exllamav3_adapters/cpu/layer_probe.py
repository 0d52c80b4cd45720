"""Finds the attention layers of a transformers model, and whether they come out right over pages.

A model's code decides what its attention asks for, and a wrong answer of ours would show only as worse text. So the
layers are not read off the config: a few tokens run through the model over pages and once more as transformers'
own plain attention does it, and the logits are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from exllamav3.constants import PAGE_SIZE

from exllamav3_adapters.cpu.attention import ATTENTION, AttentionSite, UnsupportedAttention
from exllamav3_adapters.cpu.paged_batch import PagedBatch, PagedLayer

_PROBE_TOKENS = 8
# Relative to the largest logit; float32 rounding is below 1e-5.
_TOLERANCE = 1e-3


@dataclass(slots=True)
class _OnePage:
    k: torch.Tensor
    v: torch.Tensor


class _RecordedLayers:
    """Gives every layer that asks a page of its own, and remembers which did."""

    def __init__(self) -> None:
        self.sites: dict[int, AttentionSite] = {}
        self._pages: dict[int, _OnePage] = {}

    def find(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor, sliding_window: int | None) -> PagedLayer:
        if layer_idx not in self._pages:
            heads, key_size, value_size = key.shape[1], key.shape[-1], value.shape[-1]
            self._pages[layer_idx] = _OnePage(
                torch.zeros(1, PAGE_SIZE, heads, key_size), torch.zeros(1, PAGE_SIZE, heads, value_size)
            )
            self.sites[layer_idx] = AttentionSite(
                layer_idx=layer_idx,
                num_kv_heads=heads,
                head_dim=key_size,
                value_head_dim=value_size,
                sliding_window=sliding_window,
            )
        return self._pages[layer_idx]


def find_attention_sites(network: Any) -> list[AttentionSite]:
    """The attention layers of a causal language model that was loaded with `ATTENTION`, in order.

    Raises `UnsupportedAttention` where a layer does not use the interface, or computes something else over pages.
    """
    layers = _RecordedLayers()
    token_ids = torch.arange(_PROBE_TOKENS)[None] % network.config.get_text_config(decoder=True).vocab_size
    half = _PROBE_TOKENS // 2
    paged = torch.cat(
        [_run(network, layers, token_ids[:, :half], 0), _run(network, layers, token_ids[:, half:], half)], 1
    )
    network.set_attn_implementation("eager")
    try:
        plain = network(input_ids=token_ids, use_cache=False).logits
    finally:
        network.set_attn_implementation(ATTENTION)
    error = float((paged - plain).abs().max() / plain.abs().max().clamp_min(1.0))
    if not error <= _TOLERANCE:
        raise UnsupportedAttention(f"over pages its logits differ by {error:.1e} of the largest one")
    _check_windows(network, layers.sites)
    return [layers.sites[index] for index in sorted(layers.sites)]


def _run(network: Any, layers: _RecordedLayers, token_ids: torch.Tensor, start: int) -> torch.Tensor:
    batch = PagedBatch(
        layers, torch.zeros(1, 1, dtype=torch.int32), torch.tensor([start]), token_ids.shape[1], token_ids.shape[0]
    )
    logits: torch.Tensor = network(
        input_ids=token_ids, position_ids=batch.positions, use_cache=False, paged_batch=batch
    ).logits
    return logits


def _check_windows(network: Any, sites: dict[int, AttentionSite]) -> None:
    """Eight tokens fit into every window, so whether the width of a window arrived is not seen in the logits."""
    config = network.config.get_text_config(decoder=True)
    for index, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind == "sliding_attention" and index in sites and sites[index].sliding_window is None:
            raise UnsupportedAttention(f"layer {index} has sliding attention and does not hand its width down")
