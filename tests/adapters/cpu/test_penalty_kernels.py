"""Penalties against plain loops over the past."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exllamav3_adapters.cpu.penalty_kernels import apply_pres_freq_pens, apply_rep_pens, dry_penalty

VOCABULARY = 6
past_tokens = st.lists(st.integers(-1, VOCABULARY + 1), min_size=1, max_size=20)
ranges = st.integers(0, 12)
LOGITS = torch.tensor([[1.5, -2.0, 0.0, 3.0, -math.inf, 0.5]])


def strength(distance: int, sustain: int, decay: int) -> float:
    if distance > sustain + decay:
        return 0.0
    return 1.0 if decay == 0 or distance <= sustain else 1.0 - (distance - sustain) / decay


def strengths(past: list[int], token: int, sustain: int, decay: int) -> list[float]:
    return [strength(len(past) - i, sustain, decay) for i, seen in enumerate(past) if seen == token]


@given(past_tokens, ranges, ranges)
def test_repetition_weakens_with_distance(past: list[int], sustain: int, decay: int) -> None:
    out = torch.empty_like(LOGITS)
    apply_rep_pens(LOGITS, out, torch.tensor([past]), 1.3, sustain, decay)
    for token, logit in enumerate(LOGITS[0].tolist()):
        weight = max([0.0, *strengths(past, token, sustain, decay)])
        penalised = logit / 1.3 if logit > 0 else logit * 1.3
        expected = logit if weight == 0 else penalised if weight == 1 else logit * (1 - weight) + penalised * weight
        assert out[0, token].item() == pytest.approx(expected, abs=1e-5)


@given(past_tokens, ranges, ranges)
def test_frequency_counts_each_time_and_presence_once(past: list[int], sustain: int, decay: int) -> None:
    out = torch.empty_like(LOGITS)
    apply_pres_freq_pens(LOGITS, out, torch.tensor([past]), 0.7, 0.4, sustain, decay)
    for token, logit in enumerate(LOGITS[0].tolist()):
        weights = [0.0, *strengths(past, token, sustain, decay)]
        assert out[0, token].item() == pytest.approx(logit - 0.4 * sum(weights) - 0.7 * max(weights), abs=1e-5)


def test_a_masked_token_stays_masked_under_every_penalty() -> None:
    logits = torch.full((1, VOCABULARY), -math.inf)
    for penalise in (
        lambda: apply_rep_pens(logits, logits, torch.tensor([[0, 1]]), 2.0, 100, 0),
        lambda: apply_pres_freq_pens(logits, logits, torch.tensor([[0, 1]]), 2.0, 2.0, 1, 1),
    ):
        penalise()
        assert torch.equal(logits, torch.full((1, VOCABULARY), -math.inf))


def test_penalties_refuse_a_batch() -> None:
    with pytest.raises(ValueError, match=r"apply_rep_pens.*2 rows"):
        apply_rep_pens(LOGITS.repeat(2, 1), LOGITS.repeat(2, 1), torch.zeros(2, 1).long(), 2.0, 1, 0)


def dry_by_loop(past: list[int], breakers: set[int], allowed: int, window: int, max_exponent: int) -> list[float]:
    recent = (past[-window:] if window else past)[::-1]
    limit = next((i for i, token in enumerate(recent) if token in breakers), len(recent))
    penalties = [0.0] * VOCABULARY
    if len(recent) <= allowed or limit < allowed:
        return penalties
    cap = min(limit, allowed + max_exponent if max_exponent else 2048)
    for k in range(1, len(recent)):
        length = 0
        while length < min(cap, len(recent) - k) and recent[length] == recent[length + k]:
            length += 1
        token = recent[k - 1]
        if length >= allowed and 0 <= token < VOCABULARY and token not in breakers:
            exponent = min(length - allowed, max_exponent) if max_exponent else length - allowed
            penalties[token] = max(penalties[token], 0.8 * 1.75**exponent)
    return penalties


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.sets(st.integers(0, 5), max_size=1),
    st.integers(0, 3),
    st.integers(0, 20),
    st.sampled_from([0, 3]),
)
def test_a_repeat_costs_more_the_longer_it_is(
    past: list[int], breakers: set[int], allowed: int, window: int, max_exponent: int
) -> None:
    mask = torch.tensor([token in breakers for token in range(VOCABULARY)])
    out = torch.empty(1, VOCABULARY)
    scratch = torch.empty(0)
    dry_penalty(
        torch.zeros(1, VOCABULARY), out, torch.tensor([past]), mask, scratch, scratch, 0.8, 1.75, allowed, window,
        max_exponent, 2048,
    )  # fmt: skip
    expected = dry_by_loop(past, breakers, allowed, window, max_exponent)
    assert out[0].tolist() == pytest.approx([-penalty for penalty in expected], rel=1e-6)
