"""Attention of transformers models over exllamav3's pages.

`register()` adds `ATTENTION` to transformers' attention interface. A model that was loaded with it calls
`paged_attention` in each layer; block table, lengths and pages reach it through the forward's keyword arguments as
one `PagedBatch` (`paged_batch.py`), which is made once for a forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from exllamav3_adapters.cpu.paged_batch import PagedBatch, PagedSequence

ATTENTION = "exllamav3_pages"
"""The name to pass as `attn_implementation`."""


class UnsupportedAttention(Exception):
    """A model asks for something of its attention that is not done here; the message says what."""


@dataclass(kw_only=True)
class AttentionSite:
    """One attention layer, with the attributes that exllamav3's `Cache` and disk tier read of a module."""

    layer_idx: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    sliding_window: int | None = None
    """How many tokens back a token sees, itself included. None: all."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache_layers: list[Any] = field(default_factory=list)
    recurrent_layers: list[Any] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"model.layers.{self.layer_idx}.self_attn"


def register() -> None:
    """Makes `ATTENTION` known to transformers. May be called more than once.

    transformers builds no mask for an attention that has no mask function of its own, so none is built here
    that a layer would have to take apart again.
    """
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    *,
    paged_batch: PagedBatch | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Writes keys and values to their pages and attends over all that these sequences hold.

    query is (B, heads, T, size), key and value (B, KV heads, T, size), the result (B, T, heads, value size).
    `softcap` bounds the scores (Gemma 2); `s_aux` is one sink logit for each head (gpt-oss).
    """
    del ignored
    if paged_batch is None:
        raise UnsupportedAttention("it does not hand keyword arguments down to its attention layers")
    if attention_mask is not None:
        raise UnsupportedAttention("it builds an attention mask of its own")
    layer_idx = getattr(module, "layer_idx", None)
    if layer_idx is None:
        raise UnsupportedAttention(f"its attention module {type(module).__name__} has no layer index")
    layer = paged_batch.layers.find(layer_idx, key, value, sliding_window)
    keys, values = layer.k.flatten(0, 1), layer.v.flatten(0, 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = []
    for index, sequence in enumerate(paged_batch.sequences):
        _write(sequence, keys, values, key[index], value[index])
        first, slots = paged_batch.seen(index, sliding_window)
        if softcap is not None or s_aux is not None:
            mask = paged_batch.mask(first, sequence.start, sequence.end, sliding_window)
            row = _attend_by_steps(query[index], keys, values, slots, scale, mask, softcap, s_aux)
        elif query.shape[2] == 1:
            row = _decode(query[index], keys, values, slots, scale)
        else:
            row = _prefill(query[index], keys, values, slots, scale, paged_batch, sequence, first, sliding_window)
        rows.append(row.transpose(0, 1))
    return (rows[0][None] if len(rows) == 1 else torch.stack(rows)), None


def _write(
    sequence: PagedSequence, keys: torch.Tensor, values: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Copies the new keys and values (KV heads, T, size) to the slots of their positions."""
    done = 0
    for begin, end in sequence.new_slots:
        keys[begin:end] = key[:, done : done + end - begin].transpose(0, 1)
        values[begin:end] = value[:, done : done + end - begin].transpose(0, 1)
        done += end - begin


def _gather(pages: torch.Tensor, slots: list[tuple[int, int]]) -> torch.Tensor:
    """(KV heads, tokens, size): a view where the slots are one run, else a copy."""
    pieces = [pages[begin:end] for begin, end in slots]
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).transpose(0, 1)


def _prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: list[tuple[int, int]],
    scale: float,
    batch: PagedBatch,
    sequence: PagedSequence,
    first: int,
    window: int | None,
) -> torch.Tensor:
    """Several tokens of one sequence: (heads, T, size)."""
    mask = batch.mask(first, sequence.start, sequence.end, window)
    key, value = _gather(keys, slots), _gather(values, slots)
    grouped = query.shape[0] != key.shape[0]
    return scaled_dot_product_attention(
        query[None], key[None], value[None], attn_mask=mask, scale=scale, enable_gqa=grouped
    )[0]


def _decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: list[tuple[int, int]], scale: float
) -> torch.Tensor:
    """One token of one sequence, which sees every slot: (heads, 1, size).

    The heads that share keys become the rows of one product. Pages that are not neighbours are not copied
    together: scores and sums are taken run by run.
    """
    folded = query.reshape(keys.shape[1], -1, query.shape[-1])
    if len(slots) == 1:
        key, value = _gather(keys, slots), _gather(values, slots)
        out = scaled_dot_product_attention(folded[None], key[None], value[None], scale=scale)[0]
        return out.reshape(query.shape[0], 1, -1)
    scores = torch.cat([folded @ keys[begin:end].permute(1, 2, 0) for begin, end in slots], -1)
    weights = torch.split(torch.softmax(scores * scale, -1), [end - begin for begin, end in slots], -1)
    parts = [part @ values[begin:end].transpose(0, 1) for part, (begin, end) in zip(weights, slots, strict=True)]
    return torch.stack(parts).sum(0).view(query.shape[0], 1, -1)


def _attend_by_steps(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: list[tuple[int, int]],
    scale: float,
    mask: torch.Tensor,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What the fused attention has no argument for: (heads, T, size)."""
    groups = query.shape[0] // keys.shape[1]
    key, value = (_gather(pages, slots).repeat_interleave(groups, 0) for pages in (keys, values))
    scores = query @ key.transpose(1, 2) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1] @ value
    return torch.softmax(scores, -1) @ value
