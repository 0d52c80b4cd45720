"""The recurrent state of the sequences of one forward, as transformers' cache.

A model's recurrent layers read and write their state through transformers' own `LinearAttentionLayer`. Its tensors are
here the slots of exllamav3's cache, or a copy of them that is written back, so no kernel and no layout is ours.
Attention layers find their keys and values elsewhere (`attention.py`); towards them this cache only passes through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from exllamav3_adapters.cpu.recurrent_layer import RecurrentLayerState


class _PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """A layer whose keys and values are in exllamav3's pages."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self._num_tokens = num_tokens

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self._num_tokens

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._num_tokens + query_length, 0


class _SlotLayer(LinearAttentionLayer):  # type: ignore[misc]
    """The slots of one layer. There is always a previous state: that of an empty sequence is zero."""

    def __init__(self, state: RecurrentLayerState, slots: Sequence[int]) -> None:
        super().__init__(number_of_states=1 + max(shape.index for shape in state.module.state_shapes))
        self._slots = slots
        self._is_view = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        self._pools = state.pools
        self._shapes = state.module.state_shapes
        for shape, pool in zip(self._shapes, self._pools, strict=True):
            rows = pool[slots[0] : slots[0] + len(slots)] if self._is_view else pool[list(slots)]
            self.has_previous_state[shape.index] = True
            if shape.kind == "conv":
                self.conv_states[shape.index] = rows
                self.is_conv_states_initialized[shape.index] = True
                self.conv_kernel_size[shape.index] = rows.shape[-1]
            else:
                self.recurrent_states[shape.index] = rows
                self.is_recurrent_states_initialized[shape.index] = True
        self.device, self.dtype = self._pools[0].device, self._pools[0].dtype

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a layer that has attention beside its state."""
        return key_states, value_states

    def write_back(self) -> None:
        if self._is_view:
            return
        for shape, pool in zip(self._shapes, self._pools, strict=True):
            states = self.conv_states if shape.kind == "conv" else self.recurrent_states
            pool[list(self._slots)] = states[shape.index]


class RecurrentBatch(Cache):  # type: ignore[misc]
    """transformers' cache for one forward of B sequences.

    layers: layer index -> the state of all slots
    slots: (B,) which slot each sequence has
    num_tokens: longest sequence before this forward
    num_layers: of the whole model
    """

    def __init__(
        self, layers: Mapping[int, RecurrentLayerState], slots: Sequence[int], num_tokens: int, num_layers: int
    ) -> None:
        self._slot_layers = {index: _SlotLayer(state, slots) for index, state in layers.items()}
        super().__init__(
            layers=[self._slot_layers.get(index) or _PagedLayer(num_tokens) for index in range(num_layers)]
        )

    def write_back(self) -> None:
        """After the forward: what was copied out of the slots goes back to them."""
        for layer in self._slot_layers.values():
            layer.write_back()


def cache_arguments(batch: RecurrentBatch | None) -> dict[str, Any]:
    """For a model's forward. A model without recurrent layers is told of no cache at all."""
    return {"use_cache": False} if batch is None else {"use_cache": True, "cache": batch}
