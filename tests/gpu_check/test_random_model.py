"""The random models: whole, always the same, and such that wrong pages would show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gpu_check.check import Check
from gpu_check.model_shape import TINY_LLAMA
from gpu_check.random_model import write_random_model
from gpu_check.random_tokenizer import SPECIAL_TOKENS
from gpu_check.requests import random_prompt


@pytest.fixture(scope="module", params=["llama", "hybrid"])
def loaded(request: pytest.FixtureRequest, check: Check) -> tuple[Any, dict[str, Any]]:
    network, told = transformers.AutoModelForCausalLM.from_pretrained(
        check.source(request.param), dtype=torch.float, output_loading_info=True
    )
    return network, told


def logits(network: Any, token_ids: tuple[int, ...]) -> torch.Tensor:
    """Of the last token, (vocabulary,)."""
    with torch.inference_mode():
        found: torch.Tensor = network(torch.tensor([token_ids])).logits[0, -1]
    return found


def test_transformers_misses_no_weight_and_knows_each(loaded: tuple[Any, dict[str, Any]]) -> None:
    _, told = loaded
    assert not [name for names in told.values() for name in names]


def test_the_best_two_tokens_are_seldom_close(loaded: tuple[Any, dict[str, Any]]) -> None:
    network, _ = loaded
    prompts = [random_prompt(200, seed, network.config.vocab_size).token_ids for seed in range(20)]
    best = torch.stack([logits(network, prompt).topk(2).values for prompt in prompts])
    gaps = (best[:, 0] - best[:, 1]).sort().values
    assert gaps[4] > 0.1
    assert gaps[10] > 0.5


def test_what_was_read_long_ago_decides_what_comes_next(loaded: tuple[Any, dict[str, Any]]) -> None:
    """A page with the wrong content would change the answer: not only the last tokens count."""
    network, _ = loaded
    moved = []
    for seed in range(10):
        first, second = (random_prompt(300, 100 * seed + part, network.config.vocab_size) for part in range(2))
        end = random_prompt(44, 1000 + seed, network.config.vocab_size).token_ids
        moved.append(
            float((logits(network, first.token_ids + end) - logits(network, second.token_ids + end)).abs().max())
        )
    assert min(moved) > 0.3


def test_special_tokens_are_never_the_likeliest(loaded: tuple[Any, dict[str, Any]]) -> None:
    network, _ = loaded
    for seed in range(20):
        found = logits(network, random_prompt(50, seed, network.config.vocab_size).token_ids)
        assert int(found.argmax()) >= len(SPECIAL_TOKENS)


def test_the_same_shape_has_the_same_weights(check: Check, tmp_path: Path) -> None:
    write_random_model(tmp_path, TINY_LLAMA)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / name).read_bytes() == (check.source("llama") / name).read_bytes()
