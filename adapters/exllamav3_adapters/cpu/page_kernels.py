"""Moves of block tables and of cache pages (`generator/staging.cpp` and `generator/cache.cu` of the extension)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def generator_stage_decode(
    arena: torch.Tensor,
    width: int,
    seq_block_index: Sequence[torch.Tensor],
    kv_position: Sequence[int],
    rope_offset: Sequence[int],
    batch_ids: torch.Tensor | None,
    seq_ids: Sequence[torch.Tensor],
    page_seq: Sequence[torch.Tensor],
    page_offset: Sequence[int],
) -> None:
    """Fills the tables of one decode step of B sequences.

    `arena` (int32) receives the block table (B, `width`), the cache lengths (B) and, where `rope_offset` is
    given, the positions (B), end to end. Where `seq_ids` is given, each sequence's next token is copied to
    `batch_ids` (B, 1) and noted in its page.
    """
    rows = len(seq_block_index)
    table = arena[: rows * width].view(rows, width)
    table.zero_()
    for row, block_index in zip(table, seq_block_index, strict=True):
        pages = block_index.view(-1)[:width]
        row[: pages.numel()] = pages
    lengths = arena[rows * width :]
    lengths[:rows] = torch.tensor(kv_position, dtype=torch.int32)
    if rope_offset:
        lengths[rows : 2 * rows] = lengths[:rows] + torch.tensor(rope_offset, dtype=torch.int32)
    if not seq_ids:
        return
    if batch_ids is None:
        raise ValueError("generator_stage_decode: seq_ids is given, batch_ids is not")
    for row_index, (ids, page) in enumerate(zip(seq_ids, page_seq, strict=True)):
        token = ids[0, kv_position[row_index]]
        batch_ids[row_index, 0] = token
        page[0, page_offset[row_index]] = token


def cache_rotate(cache: torch.Tensor, order: torch.Tensor, temp: torch.Tensor) -> None:
    """Moves pages of `cache` (pages, ...): `order` (int32) holds pairs of target and source page, -1 is `temp`."""
    moves = order.tolist()
    for target, source in zip(moves[::2], moves[1::2], strict=True):
        (temp if target < 0 else cache[target]).copy_(temp if source < 0 else cache[source])


def cuda_host_register(pointer: int, size: int, flags: int) -> None:
    """Host memory is where the copies end here, so there is nothing to lock for a GPU."""


def cuda_host_unregister(pointer: int) -> None:
    """The other half of `cuda_host_register`."""
