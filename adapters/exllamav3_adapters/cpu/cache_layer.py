"""The K/V pages of one attention layer, in float32 on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from exllamav3.cache.fp16 import CacheLayer_fp16
from exllamav3.constants import PAGE_SIZE

if TYPE_CHECKING:
    from exllamav3_adapters.cpu.attention import AttentionSite


class CpuCacheLayer(CacheLayer_fp16):  # type: ignore[misc]
    """Keys (pages, 256, heads, head size) and values (pages, 256, heads, value size).

    float32, as the model computes: a page that is reused holds exactly what was computed. Page-major like every
    layer of exllamav3's, so the tiers copy a page as one run of memory. Its name is part of the disk tier's
    fingerprint.
    """

    def __init__(self, config: Any, attention: AttentionSite, cache_id: int, max_num_tokens: int) -> None:
        super().__init__(config, attention, cache_id, max_num_tokens)
        pages = max_num_tokens // PAGE_SIZE
        self.value_shape = (pages, PAGE_SIZE, attention.num_kv_heads, attention.value_head_dim)

    def alloc(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.k = torch.zeros(self.shape, dtype=torch.float, device=self.device)
        self.v = torch.zeros(self.value_shape, dtype=torch.float, device=self.device)

    def storage_size(self) -> int:
        elements = torch.Size(self.shape).numel() + torch.Size(self.value_shape).numel()
        return elements * torch.float.itemsize
