"""Hybrid models run in slots of exllamav3's cache, and a stashed state goes on as if it had never left."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exllamav3 import GreedySampler, Job
from exllamav3.cache.recurrent import RecurrentCache
from tiny_model import TINY_HYBRID, write_tiny_hybrid, write_tiny_model

from exllamav3_adapters.cpu.model import CpuModel, make_cache

PAGE = 256
CHUNKS = [256, 100, 256, 1, 1, 86]
Answers = Callable[..., Any]

# Which of transformers' hybrids: gated delta nets, short convolutions, Mamba-2 beside and inside attention layers.
_DELTA_NET = {name: value for name, value in TINY_HYBRID.items() if name != "mlp_only_layers"}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3_next": _DELTA_NET | _EXPERTS,
    "qwen3_5_text": _DELTA_NET,
    "olmo_hybrid": _DELTA_NET,
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1], **_MAMBA},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_chunk_size": 8, **_MAMBA, "mamba_n_heads": 4},
    "nemotron_h": {
        "num_hidden_layers": 3,
        "hybrid_override_pattern": "M*-",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
    },
}


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory, load_folder: Any) -> Any:
    return load_folder(write_tiny_hybrid(tmp_path_factory.mktemp("hybrid") / "tiny"))


def stepwise_logits(model: CpuModel, ids: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    cache = make_cache(model, 2048)
    state = cache.get_new_state()
    found, done = [], 0
    with torch.inference_mode():
        for chunk in chunks:
            params = {
                "cache": cache,
                "block_table": torch.tensor([[5, 1, 3, 0]], dtype=torch.int32),
                "cache_seqlens": torch.tensor([done], dtype=torch.int32),
                "recurrent_states": [state],
            }
            found.append(model.forward(ids[:, done : done + chunk], params))
            done += chunk
    assert state.position == done
    return torch.cat(found, 1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_over_slots_equal_one_plain_forward(
    architecture: str, tmp_path: Path, load_folder: Any, token_ids: Any
) -> None:
    model = load_folder(write_tiny_model(tmp_path / architecture, architecture, **ARCHITECTURES[architecture])).model
    ids = token_ids(sum(CHUNKS), seed=1)
    found = stepwise_logits(model, ids, CHUNKS)
    model.network.set_attn_implementation("eager")
    with torch.inference_mode():
        plain = model.network(input_ids=ids, use_cache=False).logits
    assert float((found - plain).abs().max() / plain.abs().max()) < 1e-3


class RecordedJob(Job):
    """Keeps the logits that its tokens were sampled from."""

    def receive_logits(self, logits: torch.Tensor) -> Any:
        self.__dict__.setdefault("logits", []).append(logits.clone())
        return super().receive_logits(logits)


@pytest.fixture
def recorded() -> Callable[..., RecordedJob]:
    def make(ids: torch.Tensor, max_new_tokens: int) -> RecordedJob:
        made = RecordedJob(ids, max_new_tokens, sampler=GreedySampler(), max_rq_tokens=512)
        made.identifier = id(made)
        return made

    return make


def logits(job: RecordedJob) -> torch.Tensor:
    return torch.cat(job.__dict__["logits"], 1)


def test_a_resumed_run_agrees_with_a_cold_run_of_other_shapes(
    hybrid: Any, token_ids: Any, job: Any, recorded: Any, answer: Answers
) -> None:
    ids = token_ids(1000, seed=3)
    generator = hybrid.generator()
    answer(generator, job(ids[:, :700], 1))
    jobs = [recorded(ids, 20), recorded(ids, 20)]
    [resumed], [cold] = answer(generator, jobs[0]), answer(hybrid.generator(max_chunk_size=1024), jobs[1])
    assert resumed.last["cached_tokens"] == 2 * PAGE
    assert resumed.token_ids == cold.token_ids
    assert float((logits(jobs[0]) - logits(jobs[1])).abs().max()) < 1e-3


def test_requests_together_answer_as_they_do_alone(hybrid: Any, token_ids: Any, job: Any, answer: Answers) -> None:
    prompts = [token_ids(length, seed=length) for length in (600, 1, 257, 30)]
    together = answer(hybrid.generator(8192), *[job(ids, 40) for ids in prompts])
    alone = [answer(hybrid.generator(), job(ids, 40))[0] for ids in prompts]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]


def test_sequences_in_slots_that_are_not_neighbours_keep_their_own_state(
    hybrid: Any, token_ids: Any, job: Any, answer: Answers
) -> None:
    # The first and third request leave early, so that slots 1 and 3 are decoded together.
    generator = hybrid.generator(8192)
    prompts = [token_ids(50, seed=seed) for seed in range(4)]
    together = answer(generator, *[job(ids, 5 if at % 2 == 0 else 40) for at, ids in enumerate(prompts)])
    alone = [answer(hybrid.generator(), job(prompts[at], 40))[0] for at in (1, 3)]
    assert [together[1].token_ids, together[3].token_ids] == [one.token_ids for one in alone]


def test_a_cancelled_request_gives_its_slot_back(hybrid: Any, token_ids: Any, job: Any) -> None:
    generator = hybrid.generator()
    cancelled = job(token_ids(900, seed=4), 50)
    generator.enqueue(cancelled)
    generator.iterate()
    assert len(generator.cache.free_list) == generator.cache.num_slots - 1
    generator.cancel(cancelled)
    assert len(generator.cache.free_list) == generator.cache.num_slots
    assert not generator.pagetable.referenced_pages


def test_a_new_request_starts_from_nothing_in_a_slot_that_was_used(
    hybrid: Any, token_ids: Any, job: Any, answer: Answers
) -> None:
    generator = hybrid.generator()
    answer(generator, job(token_ids(300, seed=5), 10))
    ids = token_ids(200, seed=6)
    assert answer(generator, job(ids, 20))[0].token_ids == answer(hybrid.generator(), job(ids, 20))[0].token_ids


def test_a_long_generation_is_requeued_and_goes_on_from_its_state(
    hybrid: Any, token_ids: Any, job: Any, answer: Answers
) -> None:
    ids = token_ids(250, seed=7)
    generator = hybrid.generator(recurrent_checkpoint_interval=PAGE)
    [requeued] = answer(generator, job(ids, 520, max_rq_tokens=PAGE))
    [whole] = answer(hybrid.generator(), job(ids, 520, max_rq_tokens=None))
    assert requeued.token_ids == whole.token_ids
    assert sum(result.get("requeue", False) for result in requeued.results) == 2
    assert len(generator.cache.free_list) == generator.cache.num_slots


def test_a_banned_string_is_rewound_past_the_state(hybrid: Any, token_ids: Any, job: Any, answer: Answers) -> None:
    # The state cannot step back: it is restored from a checkpoint, or made anew, and what lies between is replayed.
    ids = token_ids(600, seed=8)
    [free] = answer(hybrid.generator(), job(ids, 60))
    banned = next(found for at in range(5, 50) if (found := free.text[at : at + 2]).isascii() and found.isprintable())
    [bound] = answer(hybrid.generator(), job(ids, 60, banned_strings=[banned]))
    assert banned.lower() not in bound.text.lower()
    sequence = torch.cat([ids, torch.tensor([bound.token_ids[:-1]])], 1)
    [again] = answer(hybrid.generator(max_chunk_size=1024), job(sequence, 1))
    assert again.token_ids == bound.token_ids[-1:]


def test_a_run_resumed_from_system_memory_equals_the_cold_run_bit_for_bit(
    hybrid: Any, token_ids: Any, job: Any, recorded: Any, answer: Answers
) -> None:
    # The forwards have the same shapes and the pages lie as they did, which is what float32 rounding depends on.
    generator = hybrid.generator(2048, cpu_cache_size=32 * 2**20)
    ids = token_ids(1000, seed=9)
    jobs = [recorded(ids, 20), recorded(ids, 20)]
    answer(generator, jobs[0])
    answer(generator, job(token_ids(1900, seed=10), 1))
    assert generator.pagetable.metrics["evictions_live"] > 0
    [restored] = answer(generator, jobs[1])
    assert restored.last["cached_tokens"] == 3 * PAGE
    assert torch.equal(logits(jobs[1]), logits(jobs[0]))


def test_a_run_resumed_from_disk_equals_the_cold_run_bit_for_bit(
    hybrid: Any, token_ids: Any, recorded: Any, answer: Answers, tmp_path: Path
) -> None:
    tiers = {"cpu_cache_size": 32 * 2**20, "disk_cache_dir": str(tmp_path), "disk_cache_checkpoint_interval": 0}
    ids = token_ids(1000, seed=11)
    jobs = [recorded(ids, 20), recorded(ids, 20)]
    for one, cached_tokens in zip(jobs, (0, 3 * PAGE), strict=True):
        generator = hybrid.generator(2048, **tiers)
        [found] = answer(generator, one)
        generator.close()
        assert found.last["cached_tokens"] == cached_tokens
    assert torch.equal(logits(jobs[1]), logits(jobs[0]))


def test_the_states_are_kept_by_exllamav3(hybrid: Any) -> None:
    generator = hybrid.generator()
    assert type(generator.recurrent_cache) is RecurrentCache
    assert generator.new_recurrent_state().checkpoint_size == sum(
        layer.get_checkpoint_size() for layer in generator.cache.recurrent_layers.values()
    )
