"""Penalties for tokens that were there before (`generator/rep_pen.cu` and `generator/dry.cu` of the extension).

Every function writes `out_logits` (float32, may be `in_logits` itself) and leaves `in_logits` otherwise alone.
"""

from __future__ import annotations

import numpy as np
import torch

# The kernel's: a factor of exactly 0 or 1 would make NaN of a masked logit (-inf * 0).
_EPSILON = 1e-30


def apply_rep_pens(
    in_logits: torch.Tensor,
    out_logits: torch.Tensor,
    past_ids: torch.Tensor,
    rep_p: float,
    sustain_range: int,
    decay_range: int,
) -> None:
    """Divides positive logits of past tokens by `rep_p` and multiplies negative ones with it.

    Logits are (1, vocabulary), `past_ids` (1, n). In full for the last `sustain_range` tokens, fading to nothing
    over the `decay_range` tokens before them.
    """
    _require_one_row(in_logits, "apply_rep_pens")
    logits = in_logits.float()
    ids, factors = _recent(past_ids, logits.shape[-1], sustain_range, decay_range)
    strength = torch.zeros(logits.shape[-1]).scatter_reduce_(0, ids, factors, "amax") + _EPSILON
    penalised = torch.where(logits > 0, logits / rep_p, logits * rep_p)
    out_logits.copy_(logits * ((1 - strength) + _EPSILON) + penalised * strength)


def apply_pres_freq_pens(
    in_logits: torch.Tensor,
    out_logits: torch.Tensor,
    past_ids: torch.Tensor,
    pres_p: float,
    freq_p: float,
    sustain_range: int,
    decay_range: int,
) -> None:
    """Subtracts `freq_p` for each time and `pres_p` once for a past token; shapes and ranges as above."""
    _require_one_row(in_logits, "apply_pres_freq_pens")
    logits = in_logits.float()
    ids, factors = _recent(past_ids, logits.shape[-1], sustain_range, decay_range)
    frequency = torch.zeros(logits.shape[-1]).index_add_(0, ids, factors * freq_p)
    presence = torch.zeros(logits.shape[-1]).scatter_reduce_(0, ids, factors, "amax")
    out_logits.copy_(logits - frequency - presence * pres_p)


def _require_one_row(logits: torch.Tensor, function: str) -> None:
    if logits.shape[0] > 1:
        raise ValueError(f"{function}: penalties are for one sequence at a time, got {logits.shape[0]} rows of logits")


def _recent(past_ids: torch.Tensor, vocabulary: int, sustain: int, decay: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The past tokens in range that the vocabulary holds, and how much each counts (0 to 1), both (n,)."""
    past = past_ids.reshape(-1)
    reach = min(past.numel(), sustain + decay)
    ids = past[past.numel() - reach :]
    distance = torch.arange(reach, 0, -1, dtype=torch.float)
    factors = (1 - (distance - sustain) / decay).clamp_(0, 1) if decay > 0 else torch.ones(reach)
    known = (ids >= 0) & (ids < vocabulary)
    return ids[known], factors[known]


def dry_penalty(
    in_logits: torch.Tensor,
    out_logits: torch.Tensor,
    past_ids: torch.Tensor,
    breakers: torch.Tensor | None,
    workspace: torch.Tensor,
    counters: torch.Tensor,
    multiplier: float,
    base: float,
    allowed_length: int,
    range: int,  # noqa: A002 - the extension's own name
    max_exponent: int,
    match_cap: int,
) -> None:
    """Subtracts `multiplier * base ** (n - allowed_length)` from a token that would continue a repeat of n tokens.

    Logits are (B, vocabulary), `past_ids` (B, n), `breakers` a bool mask of tokens that end a repeat. `range` is
    how many past tokens count (0: all). `workspace` and `counters` are the kernel's scratch and are not used.
    Semantics: llama.cpp's `llama_sampler_dry_apply` with breakers of one token.
    """
    del workspace, counters
    logits = in_logits.float()
    penalties = torch.zeros(logits.shape)
    breaker_mask = None if breakers is None else breakers.numpy()
    for row, past in enumerate(past_ids):
        ids = past.numpy()[::-1]
        recent = ids[: range if range > 0 else ids.size]
        cap = allowed_length + max_exponent if max_exponent > 0 else match_cap
        repeats = _repeat_lengths(recent, logits.shape[-1], breaker_mask, allowed_length, cap)
        charged = np.flatnonzero(repeats >= allowed_length)
        exponents = repeats[charged] - allowed_length
        if max_exponent > 0:
            exponents = np.minimum(exponents, max_exponent)
        with np.errstate(over="ignore"):  # past float32 the token is banned, as on a GPU
            amounts = (multiplier * np.power(float(base), exponents.astype(np.float64))).astype(np.float32)
        penalties[row, torch.from_numpy(charged)] = torch.from_numpy(amounts)
    out_logits.copy_(logits - penalties)


def _repeat_lengths(
    recent: np.ndarray[tuple[int], np.dtype[np.int64]],
    vocabulary: int,
    breakers: np.ndarray[tuple[int], np.dtype[np.bool_]] | None,
    allowed_length: int,
    cap: int,
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each token the length of the longest repeat that it would continue, -1 where there is none.

    `recent` is newest first, so a repeat that ended k tokens ago is a common prefix of `recent` and `recent[k:]`.
    """
    longest = np.full(vocabulary, -1, dtype=np.int64)
    size = recent.size
    in_vocabulary = (recent >= 0) & (recent < vocabulary)
    limit = size
    if breakers is not None:
        at = np.flatnonzero(in_vocabulary & breakers[np.where(in_vocabulary, recent, 0)])
        limit = int(at[0]) if at.size else size
    if size <= allowed_length or limit < allowed_length:
        return longest
    lengths = np.zeros(size, dtype=np.int64)
    offsets = np.arange(1, size)
    for length in range(min(cap, limit)):
        offsets = offsets[offsets + length < size]
        offsets = offsets[recent[offsets + length] == recent[length]]
        if not offsets.size:
            break
        lengths[offsets] = length + 1
    starts = np.flatnonzero((lengths >= allowed_length) & (np.arange(size) > 0))
    starts = starts[in_vocabulary[starts - 1]]
    np.maximum.at(longest, recent[starts - 1], lengths[starts])
    if breakers is not None:
        longest[breakers] = -1
    return longest
