"""The recurrent state of one layer, for every sequence slot of an exllamav3 cache, in float32 on the CPU.

exllamav3 gives each sequence a slot (`GDNState`) and asks the layers to clear, stash and restore it. What a slot holds
is laid out as transformers lays out its own `LinearAttentionLayer`, whose code reads and writes it
(`recurrent_batch.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from exllamav3.cache.recurrent import host_copy


@dataclass(frozen=True, slots=True)
class StateShape:
    """One tensor of a layer's state. A layer may have several of a kind, or none of one."""

    kind: Literal["conv", "recurrent"]
    index: int
    """transformers' `state_idx`."""
    shape: tuple[int, ...]
    """Of one sequence: conv (channels, kernel size), recurrent (heads, key size, value size)."""


@dataclass(kw_only=True, eq=False)
class RecurrentSite:
    """One layer that keeps state, with the attributes that exllamav3's `Cache` and disk tier read of a module."""

    layer_idx: int
    state_shapes: tuple[StateShape, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    recurrent_layers: list[Any] = field(default_factory=list)

    @property
    def layer_state_cls(self) -> type[RecurrentLayerState]:
        return RecurrentLayerState

    @property
    def key(self) -> str:
        return f"model.layers.{self.layer_idx}.recurrent"


class RecurrentLayerState:
    """exllamav3 names the methods. `pools` holds (slots, *shape), float32, for each of the layer's state shapes.

    float32 throughout, as the model computes: a state that was stashed and restored is the state that was left.
    """

    def __init__(self, module: RecurrentSite, max_batch_size: int, max_history: int, cache_id: int) -> None:
        """`max_history` is room for speculative passes, which the CPU engine does not make."""
        del max_history, cache_id
        self.module = module
        self.pools = [torch.empty(max_batch_size, *state.shape, device="meta") for state in module.state_shapes]

    def alloc(self, device: torch.device | str) -> None:
        self.pools = [torch.zeros(pool.shape, dtype=torch.float, device=device) for pool in self.pools]

    def free(self) -> None:
        self.pools = [torch.empty(pool.shape, device="meta") for pool in self.pools]

    def clear(self, slot: int) -> None:
        """Zeros are the state before the first token."""
        for pool in self.pools:
            pool[slot].zero_()

    def stash(self, slot: int, position: int = 0) -> tuple[torch.Tensor, ...]:
        """A copy in exllamav3's pooled host buffers, one tensor for each pool."""
        del position
        return tuple(host_copy(pool[slot]) for pool in self.pools)

    def unstash(self, slot: int, stashed: Sequence[torch.Tensor], position: int = 0) -> None:
        del position
        for pool, tensor in zip(self.pools, stashed, strict=True):
            pool[slot].copy_(tensor)

    def get_checkpoint_size(self) -> int:
        """Bytes of one slot."""
        return sum(pool[0].numel() * torch.float.itemsize for pool in self.pools)

    def storage_size(self) -> int:
        return sum(pool.numel() * torch.float.itemsize for pool in self.pools)

    def get_state_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.pools)
