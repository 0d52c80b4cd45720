"""The draw: what may be drawn, how often, and that a seed repeats.

The reference is exllamav3's own path of separate steps, which the fused one replaces.
"""

import math

import numpy as np
import pytest
import torch
from exllamav3 import ComboSampler
from exllamav3.generator.sampler import custom
from hypothesis import given, settings
from hypothesis import strategies as st

from exllamav3_adapters.cpu.sampling_kernels import (
    adaptivep_gumbel_noise_f32,
    apply_logit_bitmask,
    gumbel_noise,
    unpack_bitmask,
)

VOCABULARY = 40
DRAWS = 20_000
SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 1.3, "min_p": 0.1},
    {"top_k": 5},
    {"top_p": 0.6},
    {"temperature": 1.5, "top_p": 0.8, "temp_last": True},
    {"temperature": 0.6, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.4, "top_k": 8, "top_p": 0.5, "temp_last": True},
]


def random_logits(seed: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def sampler(fused: bool, options: dict[str, float]) -> ComboSampler:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(custom, "fused_sampler_enable", fused)
        made = ComboSampler(**options)
    assert any(isinstance(step, custom.SS_Fused) for step in made.steps) is fused
    return made


def frequencies(fused: bool, options: dict[str, float], logits: torch.Tensor, seed: int) -> torch.Tensor:
    rows = logits.expand(DRAWS, 1, VOCABULARY).clone()
    drawn = sampler(fused, options).forward(rows, rand_u32=seed).flatten()
    return torch.bincount(drawn, minlength=VOCABULARY) / DRAWS


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_the_fused_draw_has_the_distribution_of_the_steps(options: dict[str, float]) -> None:
    logits = random_logits(3)
    fused, steps = frequencies(True, options, logits, 1), frequencies(False, options, logits, 2)
    assert float((fused - steps).abs().sum()) / 2 < 0.03
    likely = steps > 0.002
    assert torch.equal(fused[likely] > 0, steps[likely] > 0)
    assert not fused[steps == 0].gt(0.001).any()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_a_seed_repeats_and_another_draws_otherwise(seed: int) -> None:
    rows = torch.zeros(64, 1, VOCABULARY)
    draw = sampler(True, {"temperature": 0.9})
    first = draw.forward(rows.clone(), rand_u32=seed)
    assert torch.equal(first, draw.forward(rows.clone(), rand_u32=seed))
    assert not torch.equal(first, draw.forward(rows.clone(), rand_u32=seed ^ 1))


def test_without_truncation_both_paths_draw_the_same_token() -> None:
    rows = random_logits(5).expand(500, 1, VOCABULARY)
    options = {"temperature": 0.8}
    assert torch.equal(
        sampler(True, options).forward(rows.clone(), rand_u32=9),
        sampler(False, options).forward(rows.clone(), rand_u32=9),
    )


def test_temperature_zero_is_the_first_of_the_largest() -> None:
    rows = torch.tensor([[[0.0, 3.0, 3.0, 1.0]]])
    assert sampler(True, {"temperature": 0.0}).forward(rows, rand_u32=1).item() == 1


def test_tokens_that_tie_at_the_crossing_share_what_top_p_needs_of_them() -> None:
    # Half of the mass is one token; of the eight that share the rest, top-p 0.75 needs four.
    logits = torch.full((VOCABULARY,), -math.inf)
    logits[0], logits[1:9] = math.log(0.5), math.log(0.5 / 8)
    found = frequencies(True, {"top_p": 0.75}, logits, 4)
    assert found[0].item() == pytest.approx(2 / 3, abs=0.02)
    assert found[1:9].min().item() > 0.02


def test_top_p_looks_past_the_likeliest_few() -> None:
    rows = torch.zeros(400, 1, 8192)
    drawn = sampler(True, {"top_p": 0.9}).forward(rows, rand_u32=1)
    assert drawn.unique().numel() > 350


@pytest.mark.parametrize("top_p", [0.999, 0.9999999])
def test_a_top_p_of_nearly_one_still_draws_by_probability(top_p: float) -> None:
    logits = torch.linspace(0, -400, VOCABULARY)
    found = frequencies(True, {"top_p": top_p}, logits, 6)
    assert found[0].item() == pytest.approx(1, abs=0.001)


def bitmask(allowed: list[int], words: int) -> torch.Tensor:
    bits = np.zeros(words * 32, dtype=np.uint8)
    bits[allowed] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32)[None].copy())


@given(st.sets(st.integers(0, VOCABULARY - 1), min_size=1), st.sampled_from([None, {"temperature": 0.7, "top_p": 0.9}]))
def test_only_tokens_of_the_bitmask_are_drawn(allowed: set[int], options: dict[str, float] | None) -> None:
    chosen = options or {"temperature": 0.0}
    drawn = sampler(True, chosen).forward(
        torch.zeros(32, 1, VOCABULARY), rand_u32=3, logit_mask=bitmask(sorted(allowed), 2)
    )
    assert set(drawn.flatten().tolist()) <= allowed


def test_a_bitmask_ends_where_the_vocabulary_goes_on() -> None:
    out = torch.empty(2, VOCABULARY)
    apply_logit_bitmask(torch.ones(2, VOCABULARY), out, bitmask([0, 31], 1))
    assert torch.isfinite(out[0]).nonzero().flatten().tolist() == [0, 31]
    assert torch.equal(out[0], out[1])
    assert unpack_bitmask(bitmask([0, 31], 1), 8).tolist() == [[True] + [False] * 7]


def test_a_dense_mask_is_added() -> None:
    mask = torch.full((1, VOCABULARY), -math.inf, dtype=torch.half)
    mask[0, [4, 7]] = 0
    drawn = sampler(True, {"temperature": 1.0, "top_k": 30}).forward(
        torch.zeros(200, 1, VOCABULARY), rand_u32=3, logit_mask=mask
    )
    assert set(drawn.flatten().tolist()) == {4, 7}


def test_penalties_under_a_grammar_do_not_draw_a_masked_token() -> None:
    rows = torch.zeros(1, 1, VOCABULARY)
    draw = sampler(True, {"rep_p": 1.5, "pres_p": 0.5, "freq_p": 0.2, "dry_multiplier": 0.8, "temperature": 1.0})
    for seed in range(20):
        past = torch.tensor([[5, 9, 5, 9, 5]])
        drawn = draw.forward(rows.clone(), past, seed, logit_mask=bitmask([5, 9], 2))
        assert drawn.item() in (5, 9)


def test_every_other_step_of_exllamav3_runs() -> None:
    steps = [
        custom.SS_DRY(0.8, dry_sequence_breakers=[1]),
        custom.SS_BanTokens([0, 1]),
        custom.SS_LogitBias({2: -5.0}),
        custom.SS_XTC(0.5, 0.1),
        custom.SS_AdaptiveP(0.4, 0.9),
    ]
    draw = custom.CustomSampler(steps)
    past = torch.tensor([[5, 6, 7, 5, 6]])
    drawn = {draw.forward(random_logits(seed).view(1, 1, -1), past, seed).item() for seed in range(50)}
    assert len(drawn) > 5
    assert not drawn & {0, 1}


def test_noise_is_gumbel() -> None:
    noise = gumbel_noise(torch.Size([200_000]), 7)
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert torch.isfinite(noise).all()


def test_adaptive_p_prefers_the_target_and_leaves_out_the_improbable() -> None:
    probs = torch.tensor([[0.9, 0.5, 1e-9]]).repeat(2000, 1)
    out = torch.empty_like(probs)
    adaptivep_gumbel_noise_f32(probs, out, 3, 0.5, 1 / 0.3, 5.0, 10.0)
    drawn = torch.bincount(out.argmax(-1), minlength=3)
    assert drawn[1] > drawn[0] > 0
    assert drawn[2] == 0
