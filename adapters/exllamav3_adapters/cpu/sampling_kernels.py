"""Masks, truncation and the draw itself (`generator/gumbel.cu` and `generator/sampling_*.cu` of the extension).

A token is drawn from softmax(l / T) as argmax(l / T + g) with Gumbel noise g. The noise is torch's own generator
seeded with the number that the scheduler passes, so a seed repeats on a CPU but does not give a GPU's tokens.
"""

from __future__ import annotations

import math

import numpy as np
import torch

FILTER_TOP_K = 1
FILTER_TOP_P = 2
FILTER_MIN_P = 4

MODE_GREEDY = 0
MODE_SAMPLE = 1
MODE_SAMPLE_MIN_P = 2
MODE_SAMPLE_FILTERS = 3

# How many of the likeliest tokens are sorted for top-p, in turn, until they hold its mass: sorting all is slow.
_NUCLEUS_GUESSES = (256, 4096)


def gumbel_noise(shape: torch.Size, random: int) -> torch.Tensor:
    """Gumbel(0, 1) noise of `shape`, float32; the same for the same `random` (32 bits)."""
    generator = torch.Generator().manual_seed(int(random) & 0xFFFFFFFF)
    uniform = torch.rand(shape, generator=generator).clamp_(1e-20, 0.99999994)
    return uniform.log_().neg_().clamp_min_(1e-20).log_().neg_()


def gumbel_noise_f16(logits_in: torch.Tensor, logits: torch.Tensor, random: int) -> None:
    """`logits` = `logits_in` + noise."""
    logits.copy_(logits_in.float() + gumbel_noise(logits_in.shape, random))


def gumbel_noise_f32(logits_in: torch.Tensor, logits: torch.Tensor, random: int) -> None:
    """`logits` = `logits_in` + noise."""
    logits.copy_(logits_in + gumbel_noise(logits_in.shape, random))


def gumbel_noise_log(probs: torch.Tensor, logits: torch.Tensor, random: int) -> None:
    """`logits` = ln(`probs`) + noise."""
    logits.copy_(probs.log() + gumbel_noise(probs.shape, random))


def adaptivep_gumbel_noise_f32(
    probs_in: torch.Tensor,
    logits: torch.Tensor,
    random: int,
    adapted_target: float,
    inv_width: float,
    peak_logit_value: float,
    sharpness: float,
) -> None:
    """Logits that peak where a probability is `adapted_target`, plus noise. Probabilities of nearly 0 stay out."""
    distance = (probs_in - adapted_target).abs() * inv_width
    peaked = peak_logit_value - sharpness * distance * distance / (distance + 1)
    noisy = peaked + gumbel_noise(probs_in.shape, random)
    logits.copy_(noisy.masked_fill(probs_in < 1e-8, -math.inf))


def apply_logit_bitmask(logits_in: torch.Tensor, logits_out: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Copies (B, vocabulary) logits; -inf where the bit is clear or past the end of `bitmask` (1 or B, words)."""
    allowed = unpack_bitmask(bitmask, logits_in.shape[-1])
    logits_out.copy_(logits_in.masked_fill(~allowed, -math.inf))


def unpack_bitmask(bitmask: torch.Tensor, size: int) -> torch.Tensor:
    """int32 words of 32 tokens each, lowest bit first, to a bool mask (rows, `size`)."""
    words = bitmask.contiguous().view(bitmask.shape[0], -1).numpy()
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", axis=-1)
    allowed = np.zeros((bits.shape[0], size), dtype=np.bool_)
    width = min(size, bits.shape[-1])
    allowed[:, :width] = bits[:, :width]
    return torch.from_numpy(allowed)


def fused_sampler(
    logits: torch.Tensor,
    logit_mask: torch.Tensor | None,
    logit_bitmask: torch.Tensor | None,
    out: torch.Tensor,
    workspace: torch.Tensor,
    size: int,
    inv_temp: float,
    minp_log: float,
    random: int,
    mode: int,
    filters: int,
    top_k: int,
    top_p: float,
    inv_temp_filter: float,
    histogram: torch.Tensor | None,
) -> None:
    """One draw for each row of `logits` (B, vocabulary) into `out` (B, 1), from the first `size` tokens.

    `logit_mask` is added, of `logit_bitmask` every clear bit is taken out. min-p keeps logits of at least
    max + `minp_log`; top-k keeps all that tie with the k-th; top-p works on softmax(l * `inv_temp_filter`) of what
    top-k left. `workspace` and `histogram` are the kernel's scratch and are not used.
    """
    del workspace, histogram
    scores = logits[:, :size].float()
    if logit_mask is not None:
        scores = scores + logit_mask[:, :size].float()
    if logit_bitmask is not None:
        scores = scores.masked_fill(~unpack_bitmask(logit_bitmask, size), -math.inf)
    if mode == MODE_GREEDY:
        out.copy_(scores.argmax(-1, keepdim=True))
        return
    if mode == MODE_SAMPLE_MIN_P or (mode == MODE_SAMPLE_FILTERS and filters & FILTER_MIN_P):
        scores = scores.masked_fill(scores < scores.amax(-1, keepdim=True) + minp_log, -math.inf)
    bias: torch.Tensor | float = 0.0
    if mode == MODE_SAMPLE_FILTERS:
        if filters & FILTER_TOP_K:
            scores = _keep_top_k(scores, top_k)
        if filters & FILTER_TOP_P:
            scores, bias = _keep_top_p(scores, top_p, inv_temp_filter)
    # Noise for the whole row, so that a bound on the vocabulary does not change which noise a token gets.
    noise = gumbel_noise(logits.shape, random)[:, :size]
    out.copy_((scores * inv_temp + noise + bias).argmax(-1, keepdim=True))


def _keep_top_k(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """-inf below the k-th largest of each row."""
    cutoff = scores.topk(min(top_k, scores.shape[-1]), -1).values[:, -1:]
    return scores.masked_fill(scores < cutoff, -math.inf)


def _keep_top_p(scores: torch.Tensor, top_p: float, inv_temp_filter: float) -> tuple[torch.Tensor, torch.Tensor]:
    """-inf below the token whose probability crosses `top_p`, and what to add to each score when it is drawn.

    Tokens that tie with the crossing one all stay but weigh together only as much as those the sum passes
    through: with n ties of which it needs k, each gets ln(k / n).
    """
    probs = torch.softmax(scores * inv_temp_filter, -1)
    likeliest = _likeliest(probs, top_p)
    mass_before = likeliest.cumsum(-1) - likeliest
    crossing = (mass_before < top_p).sum(-1, keepdim=True).clamp_min_(1) - 1
    threshold = likeliest.gather(-1, crossing)
    tied = probs == threshold
    mass_above = (probs * (probs > threshold)).sum(-1, keepdim=True)
    ties = tied.sum(-1, keepdim=True)
    # Near top-p 1 the sum may cross among tokens whose probability is 0 in float32.
    needed = torch.ceil((top_p - mass_above) / threshold.clamp_min(1e-30)).clamp_min_(1).minimum(ties)
    bias = torch.where(tied, torch.log(needed / ties), 0.0)
    return scores.masked_fill(probs < threshold, -math.inf), bias


def _likeliest(probs: torch.Tensor, mass: float) -> torch.Tensor:
    """So many of the largest of each row, in descending order, that they sum to `mass`; all where they do not."""
    for guess in _NUCLEUS_GUESSES:
        if guess < probs.shape[-1]:
            values = probs.topk(guess, -1).values
            if bool((values.sum(-1) >= mass).all()):
                return values
    return probs.sort(-1, descending=True).values
