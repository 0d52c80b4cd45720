"""Where the sequences of one forward lie in exllamav3's pages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from exllamav3.constants import PAGE_SIZE


class PagedLayer(Protocol):
    """Where one layer's keys and values are: (pages, 256, heads, size), float32."""

    k: torch.Tensor
    v: torch.Tensor


class PagedLayers(Protocol):
    """Finds the pages of a layer. `key` and `value` (B, heads, T, size) are what is about to be written."""

    def find(
        self, layer_idx: int, key: torch.Tensor, value: torch.Tensor, sliding_window: int | None
    ) -> PagedLayer: ...


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """One row of a batch: `end` tokens of which those from `start` on are new, and where they are."""

    start: int
    end: int
    runs: tuple[tuple[int, int], ...]
    """Token slots [begin, end) of the cache, in order of position; neighbouring pages are one run."""
    new_slots: list[tuple[int, int]] = field(init=False)
    """The slots of the new tokens."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "new_slots", self.slots(self.start, self.end))

    def slots(self, first: int, last: int) -> list[tuple[int, int]]:
        """The slots of positions [first, last)."""
        found = []
        position = 0
        for begin, end in self.runs:
            low, high = max(first - position, 0), min(last - position, end - begin)
            if low < high:
                found.append((begin + low, begin + high))
            position += end - begin
        return found


class PagedBatch:
    """The sequences of one forward.

    block_table: (B, pages) page indices, int32, zero padded
    lengths: (B,) tokens that are in the cache already, int32
    num_tokens: T, new tokens of each sequence
    """

    def __init__(
        self, layers: PagedLayers, block_table: torch.Tensor, lengths: torch.Tensor, num_tokens: int, num_rows: int
    ) -> None:
        self.layers = layers
        self.sequences = [
            PagedSequence(start, start + num_tokens, _runs(pages, start + num_tokens))
            for pages, start in zip(block_table[:num_rows].tolist(), lengths[:num_rows].tolist(), strict=True)
        ]
        self._masks: dict[tuple[int, int, int, int | None], torch.Tensor] = {}
        self._seen: dict[tuple[int, int | None], tuple[int, list[tuple[int, int]]]] = {}

    @property
    def positions(self) -> torch.Tensor:
        """(B, T) positions of the new tokens, int64."""
        return torch.tensor([range(sequence.start, sequence.end) for sequence in self.sequences])

    def seen(self, row: int, window: int | None) -> tuple[int, list[tuple[int, int]]]:
        """First position that any new token of a row sees through `window`, and the slots from there on."""
        known = self._seen.get((row, window))
        if known is None:
            sequence = self.sequences[row]
            first = 0 if window is None else max(0, sequence.start - window + 1)
            known = self._seen[row, window] = first, sequence.slots(first, sequence.end)
        return known

    def mask(self, first: int, start: int, end: int, window: int | None) -> torch.Tensor:
        """(end - start, end - first): 0 where the token of a row may see the column's, else -inf. Built once."""
        known = self._masks.get((first, start, end, window))
        if known is None:
            rows = torch.arange(start, end)[:, None]
            columns = torch.arange(first, end)[None]
            hidden = columns > rows
            if window is not None:
                hidden |= columns <= rows - window
            known = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)
            self._masks[first, start, end, window] = known
        return known


def _runs(pages: list[int], num_tokens: int) -> tuple[tuple[int, int], ...]:
    """Token slots of the first `num_tokens` of a sequence; pages that follow each other in memory are joined."""
    runs: list[tuple[int, int]] = []
    for index in range(math.ceil(num_tokens / PAGE_SIZE)):
        begin = pages[index] * PAGE_SIZE
        end = begin + min(PAGE_SIZE, num_tokens - index * PAGE_SIZE)
        if runs and runs[-1][1] == begin:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((begin, end))
    return tuple(runs)
