"""How often each token is drawn, for all parameters together, against the formulas one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from exllamav3.generator.sampler import CustomSampler, SS_AdaptiveP, custom

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.exl3.sampling import LEAST_TEMPERATURE, build_sampler

VOCABULARY = 30
DRAWS = 20_000
LINE_END, SPECIAL = 3, 4
Vector = np.ndarray[Any, np.dtype[np.float64]]


class PlainTokenizer:
    """What the steps ask of a tokenizer: letters, a line end and a special token."""

    actual_vocab_size = VOCABULARY
    extended_id_to_piece = {SPECIAL: "<|x|>"}  # noqa: RUF012 - read alone

    def get_id_to_piece_list(self, include_special_tokens: bool = True) -> list[str]:
        pieces = [chr(ord("a") + token) for token in range(VOCABULARY)]
        pieces[LINE_END], pieces[SPECIAL] = "\n", "<|x|>"
        return pieces


TOKENIZER = PlainTokenizer()


def softmax(logits: Vector) -> Vector:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def tempered(probs: Vector, temperature: float) -> Vector:
    with np.errstate(divide="ignore"):
        return softmax(np.log(probs) / temperature)


def kept(probs: Vector, keep: Vector) -> Vector:
    left = np.where(keep, probs, 0)
    return np.asarray(left / left.sum())


def filtered(probs: Vector, params: GenerationParams) -> Vector:
    probs = kept(probs, probs >= params.min_p * probs.max())
    if params.top_k:
        probs = kept(probs, probs >= np.sort(probs)[-params.top_k])
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    probs = kept(probs, np.isin(np.arange(VOCABULARY), order[before < params.top_p]))
    likely = [token for token in np.argsort(-probs) if probs[token] >= params.xtc_threshold]
    left_out = [token for token in likely if token not in (LINE_END, SPECIAL)][:-1]
    without = kept(probs, ~np.isin(np.arange(VOCABULARY), left_out))
    return np.asarray(params.xtc_probability * without + (1 - params.xtc_probability) * probs)


def expected(logits: Vector, params: GenerationParams) -> Vector:
    """The order: bans and biases, temperature, min-p, top-k, top-p, XTC, or the temperature there."""
    shaped = logits.copy()
    shaped[list(params.banned_tokens)] = -np.inf
    for token, bias in params.logit_bias.items():
        shaped[token] += bias
    probs = softmax(shaped)
    if params.temperature_last:
        return tempered(filtered(probs, params), params.temperature)
    return filtered(tempered(probs, params.temperature), params)


def drawn(logits: Vector, params: GenerationParams, seed: int) -> Vector:
    rows = torch.tensor(logits, dtype=torch.float).expand(DRAWS, 1, VOCABULARY).clone()
    tokens = build_sampler(params, TOKENIZER).forward(rows, rand_u32=seed, tokenizer=TOKENIZER).flatten()
    return np.bincount(tokens.numpy(), minlength=VOCABULARY) / DRAWS


def random_params(seed: int) -> GenerationParams:
    """About half of the parameters, each with a value that matters."""
    source = random.Random(seed)
    choices: dict[str, Callable[[], Any]] = {
        "temperature": lambda: source.choice([0.4, 0.8, 1.5, 3.0]),
        "temperature_last": lambda: True,
        "top_k": lambda: source.randint(2, 12),
        "top_p": lambda: source.uniform(0.4, 0.95),
        "min_p": lambda: source.uniform(0.01, 0.3),
        "xtc_probability": lambda: source.choice([0.3, 1.0]),
        "xtc_threshold": lambda: source.choice([0.02, 0.1]),
        "banned_tokens": lambda: tuple(source.sample(range(VOCABULARY), 5)),
        "logit_bias": lambda: {token: source.uniform(-3, 3) for token in source.sample(range(VOCABULARY), 5)},
    }
    return GenerationParams(**{name: choose() for name, choose in choices.items() if source.random() < 0.55})


@pytest.mark.parametrize("seed", range(30))
def test_tokens_are_drawn_as_often_as_the_formulas_say(seed: int) -> None:
    params = random_params(seed)
    logits = np.random.default_rng(seed).normal(0, 2, VOCABULARY)
    probs = expected(logits, params)
    found = drawn(logits, params, seed)
    assert np.abs(found - probs).sum() / 2 < 0.025, params
    assert not found[probs == 0].any(), params


@pytest.mark.parametrize("temperature", [LEAST_TEMPERATURE, 0.01])
def test_a_low_temperature_after_xtc_draws_the_likeliest_that_xtc_left(temperature: float) -> None:
    logits = np.linspace(0, -6, VOCABULARY)
    logits[:2] = 0.1, 0.05
    params = GenerationParams(
        temperature=temperature, temperature_last=True, xtc_probability=1.0, xtc_threshold=0.1, top_k=20
    )
    likely = np.flatnonzero(filtered(softmax(logits), params))[0]
    assert likely > 0
    assert drawn(logits, params, 1)[likely] == 1


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": LEAST_TEMPERATURE / 2}, {"top_k": 1}], ids=str
)
def test_a_greedy_choice_has_the_biases_and_nothing_of_the_filters(params: dict[str, Any]) -> None:
    logits = np.linspace(3, 0, VOCABULARY)
    greedy = GenerationParams(
        **params, banned_tokens=(0,), logit_bias={9: 2.0, 8: 1.0}, xtc_probability=1.0, adaptive_target=0.1, min_p=0.1
    )
    assert drawn(logits, greedy, 1)[9] == 1


def test_adaptive_p_moves_its_target_against_what_was_drawn() -> None:
    """Both sums make their weighted mean, and the next target is twice the target less that mean."""
    target, decay = 0.3, 0.5
    step = SS_AdaptiveP(target, decay)
    sampler = CustomSampler([step])
    logits = torch.linspace(2, 0, VOCABULARY).view(1, 1, -1)
    probs = torch.softmax(logits.flatten(), -1)
    weighted, total = target / (1 - decay), 1 / (1 - decay)
    for seed in range(20):
        token = int(sampler.forward(logits.clone(), rand_u32=seed))
        weighted, total = float(probs[token]) + decay * weighted, 1 + decay * total
        assert float(step.weighted_sum) == pytest.approx(weighted, rel=1e-5)
        assert float(step.total_weight) == pytest.approx(total)


def test_common_parameters_stay_one_kernel_call() -> None:
    """A step on the logits, then all the rest at once: what makes sampling on a GPU cheap."""
    plain = GenerationParams(temperature=0.7, top_p=0.9, min_p=0.05, top_k=40)
    assert [type(step) for step in build_sampler(plain, TOKENIZER).steps] == [custom.SS_Fused]
    shaped = GenerationParams(
        temperature=0.7, temperature_last=True, top_p=0.9, logit_bias={1: 2.0}, banned_tokens=(2,)
    )
    steps = [type(step) for step in build_sampler(shaped, TOKENIZER).steps]
    assert steps == [custom.SS_BanTokens, custom.SS_LogitBias, custom.SS_Fused]
