"""Where on a chain of tokens checkpoints may lie: after each full page, and inside pages where frontiers are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from exllamav3.generator.pagetable import is_content_hash, tensor_hash_checksum

from exllamav3_adapters.exl3.frontier_index import FrontierIndex


@dataclass(frozen=True, slots=True)
class _Link:
    prev_hash: bytes | None
    tokens: torch.Tensor | None
    """Whatever their shape, first to last. None where they are on disk only."""


class CheckpointPlaces:
    """Reads the chains from exllamav3's page table and the tiers behind it."""

    def __init__(self, pagetable: Any, frontiers: FrontierIndex) -> None:
        self._pagetable = pagetable
        self._frontiers = frontiers

    def up_to(self, key: bytes) -> list[bytes]:
        """Keys of the places on the chain of a page, or of a frontier whose partial page is stored, first to last.

        `key` is the last of them. The chain begins later where a page before it is in no tier.
        """
        places = []  # last to first
        link = self._link(key)
        while link is not None:
            places += [key, *self._inside(link, key)]
            if link.prev_hash is None or not is_content_hash(link.prev_hash):
                break
            key = link.prev_hash
            link = self._link(key)
        return places[::-1]

    def _link(self, key: bytes) -> _Link | None:
        page = self._pagetable.get_live_page(key)
        if page is not None:
            return _Link(page.prev_hash, page.sequence)
        tier = self._pagetable.cpu_tier
        if tier is None:
            return None
        if key in tier:
            entry = tier.entries[key]
            return _Link(entry["prev_hash"], entry["tokens"])
        if tier.disk_tier is not None and tier.disk_tier.has_page(key):
            return _Link(tier.disk_tier.page_prev_hash(key), None)
        return None

    def _inside(self, link: _Link, key: bytes) -> list[bytes]:
        """Frontiers inside the page, or inside the partial page, deepest first."""
        lengths = self._frontiers.lengths(link.prev_hash)
        if link.tokens is None or not lengths:
            return []
        tokens, partial = link.tokens.view(1, -1), self._frontiers.get(key)
        num_tokens = tokens.shape[1] if partial is None else partial.num_tokens
        return [
            place
            for length in lengths
            if length < num_tokens
            and (place := tensor_hash_checksum(tokens[:, :length].contiguous(), link.prev_hash)) in self._frontiers
        ]
