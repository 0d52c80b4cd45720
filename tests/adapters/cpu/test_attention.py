"""Attention over pages gives what transformers' own attention gives, wherever the pages lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exllamav3.tokenizer import MMEmbedding
from hypothesis import given
from hypothesis import strategies as st

from exllamav3_adapters.cpu.model import CpuModel, make_cache
from exllamav3_adapters.cpu.paged_batch import PagedBatch

LENGTH = 700
CHUNKS = [256, 256, 150, 1, 1, 36]
NEIGHBOURS = [0, 1, 2]
SCATTERED = [5, 1, 3]


def paged_logits(model: CpuModel, ids: torch.Tensor, pages: list[int], chunks: list[int]) -> torch.Tensor:
    cache = make_cache(model, 2048)
    table = torch.tensor([[*pages, 0]], dtype=torch.int32)
    done, found = 0, []
    with torch.inference_mode():
        for chunk in chunks:
            params = {"cache": cache, "block_table": table, "cache_seqlens": torch.tensor([done], dtype=torch.int32)}
            found.append(model.forward(ids[:, done : done + chunk], params))
            done += chunk
    return torch.cat(found, 1)


def plain_logits(model: CpuModel, ids: torch.Tensor) -> torch.Tensor:
    model.network.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return model.network(input_ids=ids, use_cache=False).logits
    finally:
        model.network.set_attn_implementation("exllamav3_pages")


def assert_close(paged: torch.Tensor, plain: torch.Tensor) -> None:
    assert float((paged - plain).abs().max() / plain.abs().max()) < 1e-4
    assert torch.equal(paged.argmax(-1), plain.argmax(-1))


@pytest.mark.parametrize("pages", [NEIGHBOURS, SCATTERED], ids=["neighbours", "scattered"])
def test_chunks_over_pages_equal_one_plain_forward(tiny: Any, token_ids: Any, pages: list[int]) -> None:
    ids = token_ids(LENGTH, seed=1)
    assert_close(paged_logits(tiny.model, ids, pages, CHUNKS), plain_logits(tiny.model, ids))


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 40},
    "qwen3": {},
    "gemma2": {"sliding_window": 300, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "gemma3_text": {"sliding_window": 40, "query_pre_attn_scalar": 16},
    "gpt_oss": {"sliding_window": 40, "num_local_experts": 2, "num_experts_per_tok": 1},
    "phi3": {"sliding_window": 100},
}


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_windows_caps_and_sinks_of_other_architectures(
    model_type: str, tmp_path: Path, write_model: Any, load_folder: Any, token_ids: Any
) -> None:
    loaded = load_folder(write_model(tmp_path / model_type, model_type, **ARCHITECTURES[model_type]))
    ids = token_ids(LENGTH, seed=2)
    assert_close(paged_logits(loaded.model, ids, SCATTERED, CHUNKS), plain_logits(loaded.model, ids))


def test_only_the_last_logits_are_computed_where_only_they_are_wanted(tiny: Any, token_ids: Any) -> None:
    ids = token_ids(20, seed=3)
    params = {
        "cache": make_cache(tiny.model, 256),
        "block_table": torch.zeros(1, 1, dtype=torch.int32),
        "cache_seqlens": torch.zeros(1, dtype=torch.int32),
    }
    with torch.inference_mode():
        every = tiny.model.forward(ids, params)
        last = tiny.model.forward(ids, params | {"last_tokens_only": 2})
    assert last.shape == (1, 2, 259)
    assert torch.allclose(last, every[:, -2:], atol=1e-5)


def test_sequences_of_unlike_lengths_share_a_step_without_seeing_each_other(tiny: Any, token_ids: Any) -> None:
    cache = make_cache(tiny.model, 2048)
    lengths = [5, 300, 511]
    tables = torch.tensor([[6, 0], [3, 1], [4, 5]], dtype=torch.int32)
    prompts = [token_ids(length + 1, seed=length) for length in lengths]
    with torch.inference_mode():
        for prompt, table, length in zip(prompts, tables, lengths, strict=True):
            start = torch.zeros(1, dtype=torch.int32)
            params = {"cache": cache, "block_table": table[None], "cache_seqlens": start}
            tiny.model.prefill(prompt[:, :length], params)
        params = {"cache": cache, "block_table": tables, "cache_seqlens": torch.tensor(lengths, dtype=torch.int32)}
        together = tiny.model.forward(torch.cat([prompt[:, -1:] for prompt in prompts]), params)
    for row, prompt in zip(together, prompts, strict=True):
        assert_close(row, plain_logits(tiny.model, prompt)[0, -1:])


@given(st.permutations(range(6)), st.integers(1, 1536), st.integers(0, 1536))
def test_slots_are_those_of_the_block_table(pages: list[int], end: int, first: int) -> None:
    start = end - 1
    batch = PagedBatch(None, torch.tensor([pages]), torch.tensor([start]), 1, 1)  # type: ignore[arg-type]
    found = [slot for begin, stop in batch.sequences[0].slots(first, end) for slot in range(begin, stop)]
    assert found == [pages[position // 256] * 256 + position % 256 for position in range(first, end)]


def test_a_sequence_writes_its_own_pages_only(tiny: Any, token_ids: Any) -> None:
    cache = make_cache(tiny.model, 1024)
    params = {
        "cache": cache,
        "block_table": torch.tensor([[1, 3]], dtype=torch.int32),
        "cache_seqlens": torch.tensor([250], dtype=torch.int32),
    }
    with torch.inference_mode():
        tiny.model.prefill(token_ids(10, seed=4), params)
    for layer in cache.layers.values():
        written = layer.k.abs().sum((2, 3)).nonzero()
        assert written.tolist() == [[1, slot] for slot in range(250, 256)] + [[3, slot] for slot in range(4)]


def test_neighbouring_pages_are_one_run_without_a_copy() -> None:
    table = torch.tensor([[4, 5, 2, 3]], dtype=torch.int32)
    batch = PagedBatch(None, table, torch.tensor([1000]), 3, 1)  # type: ignore[arg-type]
    sequence = batch.sequences[0]
    assert sequence.runs == ((1024, 1536), (512, 1003))
    assert sequence.slots(1000, 1003) == [(1000, 1003)]
    assert sequence.slots(500, 600) == [(1524, 1536), (512, 600)]
    assert batch.positions.tolist() == [[1000, 1001, 1002]]


def test_rows_of_an_image_take_the_place_of_embeddings(tiny: Any, token_ids: Callable[..., torch.Tensor]) -> None:
    """An image made of the embeddings of words reads as those words."""
    ids = token_ids(12, seed=5)
    words = tiny.model.network.get_input_embeddings()(ids[0, 4:8])
    image = MMEmbedding(embeddings=words, token_string=torch.full((1, 4), -1))
    pictured = torch.cat((ids[:, :4], torch.tensor([image.token_list]), ids[:, 8:]), dim=1)
    logits = []
    for each, images in ((ids, []), (pictured, [image])):
        params = {
            "cache": make_cache(tiny.model, 256),
            "block_table": torch.tensor([[0]], dtype=torch.int32),
            "cache_seqlens": torch.tensor([0], dtype=torch.int32),
            "indexed_embeddings": images,
        }
        with torch.inference_mode():
            logits.append(tiny.model.forward(each, params))
    assert torch.equal(*logits)
