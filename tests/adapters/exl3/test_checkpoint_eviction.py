"""Checkpoints of a hybrid's state go by what it costs to compute them again, where that order is chosen."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.cpu.install import install

install()

import torch
from exllamav3 import Tokenizer
from exllamav3.cache.recurrent import RecurrentCache
from hybrid_run import HybridRun, tokens
from tiny_model import write_tiny_hybrid

from exllamav3_adapters.cpu.model import CpuModel, load_model
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.checkpoint_eviction import CheckpointEviction
from exllamav3_adapters.exl3.checkpoint_install import install_checkpoints
from exllamav3_adapters.exl3.page_chain import page_hashes
from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost

PAGE = 256
HEAD = tokens(1000, 1)
Start = Callable[..., HybridRun]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CpuModel:
    folder = write_tiny_hybrid(tmp_path_factory.mktemp("hybrid") / "tiny", max_position_embeddings=16384)
    return load_model(folder, lambda progress: None)


def by_cost(cost: PrefillCost | None = TYPICAL) -> CheckpointEviction:
    """With a clock that goes on by a second whenever it is read."""
    return CheckpointEviction(cost, itertools.count().__next__)


@pytest.fixture
def start(model: CpuModel) -> Start:
    """With room for `slots` checkpoints."""
    tokenizer = Tokenizer(model.config)
    state = HybridRun(model, tokenizer).generator.new_recurrent_state()
    size = state.checkpoint_size
    state.free()

    def start(slots: int, **options: Any) -> HybridRun:
        return HybridRun(model, tokenizer, recurrent_cache_size=slots * size, **options)

    return start


def positions(engine: HybridRun) -> list[int]:
    return sorted(stashed["position"] for stashed in engine.checkpoints.values())


def key_at(engine: HybridRun, position: int) -> bytes:
    [key] = [key for key, stashed in engine.checkpoints.items() if stashed["position"] == position]
    return key


def ask_short(engine: HybridRun, seeds: range) -> None:
    """Conversations of their own, with a checkpoint after 29 tokens and one after 30."""
    for seed in seeds:
        engine.ask(tokens(30, seed), 1)


@pytest.mark.parametrize(("eviction", "cached"), [(by_cost, 999), (lambda: None, 0)], ids=["gds", "lru"])
def test_what_is_dear_outlives_what_was_used_later(start: Start, eviction: Any, cached: int) -> None:
    engine = start(4, eviction=eviction())
    engine.ask(HEAD, 1)
    ask_short(engine, range(100, 110))
    assert engine.ask([*HEAD, 5], 1).cached == cached


def test_what_is_not_used_goes_in_the_end_however_dear(start: Start) -> None:
    engine = start(3, eviction=by_cost())
    engine.ask(HEAD, 1)
    ask_short(engine, range(100, 200))
    assert max(positions(engine)) == 30


def test_each_way_out_tells_the_order(start: Start) -> None:
    engine = start(8, eviction=by_cost(), cache_tokens=2048, sysmem=0)
    cache, order = engine.checkpoints, engine.checkpoints.eviction
    for seed in range(5):
        engine.ask(tokens(700, seed), 1)
    cache.forget({next(iter(cache))})
    cache.prune_stranded()
    assert cache.num_forgotten
    assert cache.metrics["stash_pruned"]
    assert len(cache) == len(order)
    assert all(key in order for key in cache)


def test_one_that_loses_a_neighbour_becomes_dearer_and_one_that_gets_one_cheaper(start: Start) -> None:
    engine = start(8, eviction=by_cost())
    engine.ask(HEAD, 1)
    order, at_end = engine.checkpoints.eviction, key_at(engine, 999)
    assert order.replay_cost(at_end) == TYPICAL.normalised().between(3 * PAGE, 999)
    engine.checkpoints.forget({key_at(engine, 3 * PAGE)})
    assert order.replay_cost(at_end) == TYPICAL.normalised().between(0, 999)
    engine.ask([*HEAD[:900], *tokens(10, 2)], 1, head=900)  # from the start, past the page and inside the next
    engine.ask([*HEAD, 5], 1)
    assert order.replay_cost(at_end) == TYPICAL.normalised().between(900, 999)


def test_a_branch_costs_from_where_it_left(start: Start) -> None:
    engine = start(8, eviction=by_cost())
    engine.ask(HEAD, 1)
    engine.ask([*HEAD[:800], *tokens(400, 3)], 1)
    order = engine.checkpoints.eviction
    assert order.replay_cost(key_at(engine, 1199)) == TYPICAL.normalised().between(4 * PAGE, 1199)
    assert order.replay_cost(key_at(engine, 4 * PAGE)) == TYPICAL.normalised().between(3 * PAGE, 4 * PAGE)


def test_what_no_request_can_reach_goes_first(start: Start) -> None:
    engine = start(3, eviction=by_cost(), cache_tokens=2048, sysmem=0)
    engine.ask(HEAD, 1)
    engine.ask(tokens(300, 4), 1)
    dear, cheap = key_at(engine, 3 * PAGE), key_at(engine, PAGE)
    engine.ask(tokens(1100, 5), 1)  # takes the pages of what is dear
    assert [engine.generator.pagetable.is_resumable(key) for key in (dear, cheap)] == [False, True]
    engine.ask(tokens(300, 6), 1)
    assert dear not in engine.checkpoints
    assert cheap in engine.checkpoints


def test_a_checkpoint_whose_page_gets_its_hash_late_keeps_its_cost(start: Start) -> None:
    # exllamav3 renames the checkpoint first, and the page after it.
    engine = start(16, eviction=by_cost())
    engine.ask(HEAD, 1)
    order, late, final = engine.checkpoints.eviction, key_at(engine, 3 * PAGE), b"its final hash"
    engine.checkpoints.rekey(late, final)
    assert late not in order
    assert order.replay_cost(final) == TYPICAL.normalised().between(0, 3 * PAGE)
    assert order.replay_cost(key_at(engine, 999)) == TYPICAL.normalised().between(3 * PAGE, 999)


def test_a_pinned_prefix_keeps_its_checkpoint_until_it_is_unpinned(start: Start) -> None:
    engine = start(3, eviction=by_cost())
    prefix = tuple(tokens(30, 8))
    engine.ask(list(prefix), 1, replay=True)
    engine.checkpoints.pin(prefix, len(prefix))
    [pinned] = engine.checkpoints
    for seed in range(5):
        engine.ask(tokens(700, seed), 1)
    assert pinned in engine.checkpoints
    engine.checkpoints.unpin(prefix)
    engine.ask(tokens(700, 9), 1)
    assert pinned not in engine.checkpoints


def test_pinned_prefixes_do_not_keep_others_out(start: Start) -> None:
    engine = start(2, eviction=by_cost())
    for seed in range(2):
        prefix = tuple(tokens(30, seed))
        engine.ask(list(prefix), 1, replay=True)
        engine.checkpoints.pin(prefix, len(prefix))
    assert len(engine.checkpoints) == 2
    engine.ask(tokens(30, 10), 1)
    assert engine.ask([*tokens(30, 10), 5], 1).cached >= 29


def test_the_pages_of_a_prefix_bound_which_of_its_checkpoints_is_pinned(start: Start) -> None:
    engine = start(4, eviction=by_cost())
    engine.ask(HEAD, 1, replay=True)
    engine.checkpoints.pin(tuple(HEAD), 3 * PAGE)
    for seed in range(60):
        engine.ask(tokens(30, seed), 1)
    assert positions(engine)[-1] == 3 * PAGE


def test_frontiers_resume_as_ever_while_checkpoints_go(start: Start) -> None:
    engine = start(5, eviction=by_cost())
    sequences = [tokens(300 + 40 * chat, chat) for chat in range(4)]
    for turn in range(3):
        for chat, sequence in enumerate(sequences):
            found = engine.ask(sequence, 8)
            sequences[chat] = [*sequence, *found.token_ids, *tokens(20, 10 * turn + chat)]
    assert engine.checkpoints.metrics["stash_evictions"]
    assert len(engine.checkpoints) == len(engine.checkpoints.eviction) == 5
    wanted = start(5, frontiers=False, sysmem=0).ask(sequences[0], 20)
    assert engine.ask(sequences[0], 20).token_ids == wanted.token_ids


def tokens_before(engine: HybridRun, sequences: list[list[int]]) -> dict[bytes, tuple[int, ...]]:
    """Of each checkpoint, from all that was ever asked."""
    found = {}
    for sequence in sequences:
        ids, hashes = torch.tensor([sequence]), page_hashes(tuple(sequence))
        found |= {phash: tuple(sequence[: PAGE * index]) for index, phash in enumerate(hashes, start=1)}
        found |= {at.key: tuple(sequence[:position]) for position, at in engine.checkpoints.prefixes(hashes, ids)}
    return {key: before for key, before in found.items() if key in engine.checkpoints}


def test_every_cost_is_that_from_the_deepest_checkpoint_that_its_tokens_extend(start: Start) -> None:
    engine, source = start(12, eviction=by_cost(), cache_tokens=16384), random.Random(1)
    order, sequences = engine.checkpoints.eviction, [tokens(200, 0)]
    for step in range(60):
        base = source.choice(sequences)
        begin = source.choice([base, base, base[: len(base) // PAGE * PAGE]])
        prompt = [*begin, *tokens(source.randrange(1, 300), 1000 + step)]
        sequences.append([*prompt, *engine.ask(prompt, source.randrange(1, 4)).token_ids])
        known = tokens_before(engine, sequences)
        assert len(known) == len(engine.checkpoints) == len(order)
        for key, before in known.items():
            others = [
                len(other) for other in known.values() if len(other) < len(before) and before[: len(other)] == other
            ]
            assert order.replay_cost(key) == TYPICAL.normalised().between(max(others, default=0), len(before))
    assert engine.checkpoints.metrics["stash_evictions"] > 50


def test_checkpoints_of_an_earlier_process_take_their_places(start: Start, tmp_path: Path) -> None:
    tiers = {"disk_cache_dir": str(tmp_path), "disk_cache_checkpoint_interval": 0}
    before = start(16, eviction=by_cost(), **tiers)
    before.ask(HEAD, 1)
    before.generator.close()
    after = start(16, eviction=by_cost(), **tiers)
    assert after.ask([*HEAD[: 3 * PAGE], *tokens(10, 3)], 1).cached == 3 * PAGE
    assert after.ask([*HEAD, 5], 1).cached == 1000
    order = after.checkpoints.eviction
    assert order.replay_cost(key_at(after, 1000)) == TYPICAL.normalised().between(3 * PAGE, 1000)
    after.generator.close()


def test_without_the_option_the_order_is_that_of_exllamav3(start: Start) -> None:
    ours, stock = start(3, frontiers=False, sysmem=0), start(3, frontiers=False, sysmem=0)
    stock.generator.recurrent_cache.__class__ = RecurrentCache
    for engine in (ours, stock):
        for seed in (1, 2, 3, 1, 4, 2, 5):
            engine.ask(tokens(300, seed), 1)
    assert list(ours.checkpoints) == list(stock.generator.recurrent_cache)
    assert ours.checkpoints.metrics == stock.generator.recurrent_cache.metrics


def test_another_exllamav3_is_refused(model: CpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherCache(RecurrentCache):  # type: ignore[misc]
        """A cache of some later version."""

    generator = HybridRun(model, Tokenizer(model.config)).generator
    generator.recurrent_cache.__class__ = OtherCache
    with pytest.raises(LoadFailed, match=r"model\.recurrent_eviction does not fit .*OtherCache"):
        install_checkpoints(generator, keeps_frontiers=False, eviction=by_cost())


def test_each_chunk_is_measured(start: Start) -> None:
    engine = start(16, eviction=by_cost(None))
    engine.ask(tokens(1000, 1), 1)
    counters = engine.checkpoints.counters()
    assert counters["prefill_cost_samples"] == 3, "of a page each: the last tokens are too few to say anything"
    assert counters["prefill_cost_d"] + 0.3 * counters["prefill_cost_e"] == pytest.approx(1 / 0.256, rel=0.1)
    assert counters["prefill_cost_error"] < 0.1


def test_what_a_resumed_prompt_did_not_compute_is_not_measured(start: Start) -> None:
    engine = start(16, eviction=by_cost(None))
    engine.ask(HEAD, 1)
    before = engine.checkpoints.counters()["prefill_cost_samples"]
    engine.ask([*HEAD, *tokens(100, 2)], 1)
    assert engine.checkpoints.counters()["prefill_cost_samples"] == before


def test_given_coefficients_are_used_and_nothing_is_measured(start: Start) -> None:
    engine = start(16, eviction=by_cost(PrefillCost(3.0, 0.5)))
    engine.ask(HEAD, 1)
    counters = engine.checkpoints.counters()
    assert (counters["prefill_cost_d"], counters["prefill_cost_e"]) == (3.0, 0.5)
    assert "prefill_cost_samples" not in counters
