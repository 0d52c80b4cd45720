"""Where a prompt lies in the cache: the hashes of its full pages, and the pages that hold its last part."""

from __future__ import annotations

from typing import Any

import torch
from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.pagetable import tensor_hash_checksum


def as_tensor(token_ids: tuple[int, ...]) -> torch.Tensor:
    """Shape (1, n), int64, on the CPU: the form of exllamav3's input ids."""
    return torch.tensor([token_ids], dtype=torch.long)


def page_hashes(token_ids: tuple[int, ...]) -> list[bytes]:
    """Chained content hashes of the prompt's full pages, as the page table computes them."""
    ids = as_tensor(token_ids)
    hashes: list[bytes] = []
    previous: bytes | None = None
    for start in range(0, len(token_ids) // PAGE_SIZE * PAGE_SIZE, PAGE_SIZE):
        previous = tensor_hash_checksum(ids[:, start : start + PAGE_SIZE], previous)
        hashes.append(previous)
    return hashes


def tail_pages(pagetable: Any, token_ids: tuple[int, ...], hashes: list[bytes]) -> list[Any]:
    """Pages that hold the tokens after the last full page, shortest first; they may go on with other tokens."""
    tail = as_tensor(token_ids)[0, len(hashes) * PAGE_SIZE :]
    if not len(tail):
        return []
    parent = hashes[-1] if hashes else None
    found = [
        page
        for page in pagetable.all_pages
        if page.prev_hash == parent
        and page.kv_position >= len(tail)
        and torch.equal(page.sequence[0, : len(tail)], tail)
    ]
    return sorted(found, key=lambda page: page.kv_position)
