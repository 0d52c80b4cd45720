"""Finds the layers of a transformers model that keep something, and whether they come out right over our cache.

A model's code decides what its attention and its recurrent layers ask for, and a wrong answer of ours would show only
as worse text. So the layers are not read off the config: a few tokens run through the model over pages and slots, in
pieces, and once more as transformers alone does it, and the logits are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from exllamav3.constants import PAGE_SIZE
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin

from exllamav3_adapters.cpu.attention import ATTENTION, AttentionSite, UnsupportedAttention
from exllamav3_adapters.cpu.paged_batch import PagedBatch, PagedLayer
from exllamav3_adapters.cpu.recurrent_batch import RecurrentBatch, cache_arguments
from exllamav3_adapters.cpu.recurrent_layer import RecurrentLayerState, RecurrentSite, StateShape

_PIECES = [4, 3, 1]
"""Tokens of each forward: one from nothing, one that goes on, and a decode step."""
_PROBE_TOKENS = sum(_PIECES)
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


@dataclass(frozen=True, slots=True)
class LayerSites:
    """In order of the layers."""

    attention: list[AttentionSite]
    recurrent: list[RecurrentSite]


def find_sites(network: Any) -> LayerSites:
    """The layers with keys and values, and those with recurrent state, of a causal language model that was loaded with
    `ATTENTION`.

    Raises `UnsupportedAttention` where an attention layer does not use the interface, or where the model computes
    something else over pages and slots.
    """
    token_ids = torch.arange(_PROBE_TOKENS)[None] % network.config.get_text_config(decoder=True).vocab_size
    network.set_attn_implementation("eager")
    try:
        plain = network(input_ids=token_ids, use_cache=False).logits
        recurrent = _find_recurrent(network, token_ids)
    finally:
        network.set_attn_implementation(ATTENTION)
    layers = _RecordedLayers()
    paged = _run_in_pieces(network, layers, recurrent, token_ids)
    error = float((paged - plain).abs().max() / plain.abs().max().clamp_min(1.0))
    if not error <= _TOLERANCE:
        raise UnsupportedAttention(f"over pages its logits differ by {error:.1e} of the largest one")
    _check_windows(network, layers.sites)
    return LayerSites([layers.sites[index] for index in sorted(layers.sites)], recurrent)


def _find_recurrent(network: Any, token_ids: torch.Tensor) -> list[RecurrentSite]:
    """What transformers' own cache holds of each recurrent layer after a forward."""
    cache = DynamicCache(config=network.config)
    if not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers):
        return []
    network(input_ids=token_ids, cache=cache, use_cache=True)
    sites = []
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionCacheLayerMixin) and (shapes := _state_shapes(layer)):
            sites.append(RecurrentSite(layer_idx=index, state_shapes=shapes))
    return sites


def _state_shapes(layer: LinearAttentionCacheLayerMixin) -> tuple[StateShape, ...]:
    conv = [
        StateShape("conv", index, tuple(state.shape[1:]))
        for index, state in layer.conv_states.items()
        if state is not None
    ]
    recurrent = [
        StateShape("recurrent", index, tuple(state.shape[1:]))
        for index, state in layer.recurrent_states.items()
        if state is not None
    ]
    return (*conv, *recurrent)


def _run_in_pieces(
    network: Any, layers: _RecordedLayers, recurrent: list[RecurrentSite], token_ids: torch.Tensor
) -> torch.Tensor:
    states = {site.layer_idx: RecurrentLayerState(site, 1, 0, 0) for site in recurrent}
    for state in states.values():
        state.alloc("cpu")
    found, start = [], 0
    for piece in torch.split(token_ids, _PIECES, 1):
        batch = PagedBatch(
            layers, torch.zeros(1, 1, dtype=torch.int32), torch.tensor([start]), piece.shape[1], piece.shape[0]
        )
        cache = RecurrentBatch(states, [0], start, num_layers(network)) if states else None
        found.append(
            network(
                input_ids=piece,
                position_ids=batch.positions,
                paged_batch=batch,
                **cache_arguments(cache),
            ).logits
        )
        start += piece.shape[1]
    return torch.cat(found, 1)


def num_layers(network: Any) -> int:
    return int(network.config.get_text_config(decoder=True).num_hidden_layers)


def _check_windows(network: Any, sites: dict[int, AttentionSite]) -> None:
    """Eight tokens fit into every window, so whether the width of a window arrived is not seen in the logits."""
    config = network.config.get_text_config(decoder=True)
    for index, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind == "sliding_attention" and index in sites and sites[index].sliding_window is None:
            raise UnsupportedAttention(f"layer {index} has sliding attention and does not hand its width down")
