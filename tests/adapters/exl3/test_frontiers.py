"""A conversation of a hybrid model goes on from the exact end of what was computed, and as if it had been computed."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.cpu.install import install

install()

import torch
from exllamav3 import Tokenizer
from hybrid_run import HybridRun, Run, tokens
from tiny_model import write_tiny_hybrid

from exllamav3_adapters.cpu.model import CpuModel, load_model

PAGE = 256
Start = Callable[..., HybridRun]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CpuModel:
    folder = write_tiny_hybrid(tmp_path_factory.mktemp("hybrid") / "tiny", max_position_embeddings=16384)
    return load_model(folder, lambda progress: None)


@pytest.fixture
def start(model: CpuModel) -> Start:
    tokenizer = Tokenizer(model.config)

    def start(**options: Any) -> HybridRun:
        return HybridRun(model, tokenizer, **options)

    return start


@pytest.fixture
def cold(start: Start) -> Callable[..., Run]:
    """The answer of a generator that has seen nothing."""

    def ask(token_ids: list[int], max_new_tokens: int, **options: Any) -> Run:
        return start(frontiers=False, sysmem=0).ask(token_ids, max_new_tokens, **options)

    return ask


def assert_same(found: Run, wanted: Run) -> None:
    assert found.token_ids == wanted.token_ids
    assert float((found.logits - wanted.logits).abs().max()) < 1e-3


def test_a_follow_up_computes_only_its_own_tokens_and_one(start: Start, cold: Any) -> None:
    engine = start()
    first = tokens(1000, 1)
    answer = engine.ask(first, 30).token_ids
    follow_up = [*first, *answer, *tokens(20, 2)]
    found = engine.ask(follow_up, 30)
    assert found.cached == len(first) + len(answer) - 1
    assert_same(found, cold(follow_up, 30))


def test_without_the_option_it_replays_from_the_last_page_of_the_prompt(start: Start) -> None:
    engine = start(frontiers=False)
    first = tokens(1000, 1)
    answer = engine.ask(first, 30).token_ids
    assert engine.ask([*first, *answer, *tokens(20, 2)], 1).cached == 3 * PAGE
    assert engine.checkpoints.counters()["checkpoints_in_pages"] == 0


def test_a_resumed_run_equals_bit_for_bit_a_run_of_the_same_shapes(start: Start) -> None:
    # One page holds it all, so that the pages lie alike. The cold run stops at its head, where the other one resumes.
    ids = tokens(220, 3)
    whole = start().ask(ids, 20, head=150)
    engine = start()
    engine.ask([*ids[:150], *tokens(30, 4)], 20, head=150)
    resumed = engine.ask(ids, 20)
    assert (whole.cached, resumed.cached) == (0, 150)
    assert torch.equal(resumed.logits, whole.logits)


def test_an_answer_is_regenerated_bit_for_bit(start: Start) -> None:
    engine = start()
    ids = tokens(200, 5)
    first, again = engine.ask(ids, 40), engine.ask(ids, 40)
    assert again.cached == len(ids) - 1
    assert torch.equal(again.logits, first.logits)


def test_a_whole_conversation_replays_at_most_a_token_a_turn(start: Start, cold: Any) -> None:
    engine = start()
    sequence, known = tokens(300, 6), 0
    for turn in range(6):
        found = engine.ask(sequence, 20 + turn)
        assert found.cached >= known - 1
        known = len(sequence) + len(found.token_ids)
        sequence = [*sequence, *found.token_ids, *tokens(37 * turn + 1, turn)]
    assert_same(engine.ask(sequence, 20), cold(sequence, 20))


@pytest.mark.full
def test_twenty_turns_past_ten_thousand_tokens_replay_a_token_a_turn(start: Start) -> None:
    engine, uncached = start(cache_tokens=16384), start(frontiers=False, sysmem=0, cache_tokens=16384)
    sequence, known = tokens(3000, 6), 1
    for turn in range(20):
        found = engine.ask(sequence, 60)
        assert found.cached == known - 1
        if turn in (9, 19):
            for page in uncached.generator.pagetable.all_pages:
                page.clear()
            assert_same(found, uncached.ask(sequence, 60))
        known = len(sequence) + len(found.token_ids)
        sequence = [*sequence, *found.token_ids, *tokens(330, 100 + turn)]
    assert known > 10_000


@pytest.mark.parametrize("length", [1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1])
def test_any_position_in_a_page_will_do(start: Start, cold: Any, length: int) -> None:
    engine = start()
    first = tokens(length, 7)
    answer = engine.ask(first, 5).token_ids
    follow_up = [*first, *answer, *tokens(2 * PAGE, 8)]
    found = engine.ask(follow_up, 5)
    assert found.cached == length + len(answer) - 1
    assert_same(found, cold(follow_up, 5))


def test_several_branches_go_on_from_one_checkpoint(start: Start, cold: Any) -> None:
    engine = start()
    first = tokens(600, 9)
    answer = engine.ask(first, 40).token_ids
    for seed in (10, 11):
        branch = [*first, *answer, *tokens(30, seed)]
        found = engine.ask(branch, 20)
        assert found.cached == len(first) + len(answer) - 1
        assert_same(found, cold(branch, 20))


def test_branches_that_run_together_go_on_from_one_checkpoint(start: Start, cold: Any) -> None:
    engine = start(cache_tokens=16384)
    first = tokens(600, 9)
    answer = engine.ask(first, 40).token_ids
    branches = [[*first, *answer, *tokens(300, seed)] for seed in (10, 11, 12)]
    found = engine.run(*[engine.job(branch, 20) for branch in branches])
    assert [run.cached for run in found] == [len(first) + len(answer) - 1] * 3
    for run, branch in zip(found, branches, strict=True):
        assert_same(run, cold(branch, 20))


def test_an_edited_answer_goes_on_from_the_end_of_the_prompt(start: Start, cold: Any) -> None:
    engine = start()
    first = tokens(600, 12)
    answer = engine.ask(first, 40).token_ids
    edited = [*first, *answer[:3], *tokens(30, 13)]
    found = engine.ask(edited, 20)
    assert found.cached == len(first) - 1
    assert_same(found, cold(edited, 20))


def test_an_edit_before_every_checkpoint_starts_from_the_page_that_is_left(start: Start, cold: Any) -> None:
    engine = start()
    first = tokens(1000, 14)
    engine.ask(first, 10)
    edited = [*first[:900], *tokens(50, 15)]
    found = engine.ask(edited, 10)
    assert found.cached == 3 * PAGE
    assert_same(found, cold(edited, 10))


def test_a_page_checkpoint_wins_where_it_lies_deeper(start: Start, cold: Any) -> None:
    engine = start()
    first = tokens(300, 16)
    engine.ask(first, 2)
    longer = [*first, *tokens(1000, 17)]
    engine.ask(longer, 2)
    other = [*longer[: 5 * PAGE], *tokens(40, 18)]
    found = engine.ask(other, 10)
    assert found.cached == 5 * PAGE
    assert engine.checkpoints.hits == {"frontier": 1, "page": 1}
    assert_same(found, cold(other, 10))


def test_it_survives_the_eviction_and_restoring_of_the_pages_below(start: Start, cold: Any) -> None:
    engine = start(cache_tokens=4096)
    first = tokens(1500, 19)
    answer = engine.ask(first, 30).token_ids
    engine.fill()
    follow_up = [*first, *answer, *tokens(20, 20)]
    found = engine.ask(follow_up, 30)
    assert engine.generator.pagetable.metrics["alloc_tier_pages"] >= 5
    assert found.cached == len(first) + len(answer) - 1
    assert_same(found, cold(follow_up, 30))


def test_it_survives_idle_times(start: Start) -> None:
    engine = start()
    first = tokens(600, 21)
    answer = engine.ask(first, 10).token_ids
    engine.generator.on_queue_drained()
    assert engine.ask([*first, *answer, 5], 1).cached == len(first) + len(answer) - 1


def test_it_goes_when_its_partial_page_has_left_the_tier(start: Start, cold: Any) -> None:
    engine = start(cache_tokens=4096, sysmem=1)
    first = tokens(1000, 22)
    answer = engine.ask(first, 30).token_ids
    for seed in range(30, 33):
        engine.fill(seed)
    follow_up = [*first, *answer, *tokens(20, 23)]
    found = engine.ask(follow_up, 20)
    assert found.cached == 0
    assert_same(found, cold(follow_up, 20))


def test_a_partial_page_leaves_the_tier_with_its_state(start: Start) -> None:
    # Room for two states: those that are dropped for newer ones give their slots back.
    size = start().generator.new_recurrent_state().checkpoint_size
    engine = start(recurrent_cache_size=2 * size)
    for seed in range(6):
        engine.ask(tokens(100, seed), 3)
    assert len(engine.checkpoints.frontiers) == len(engine.checkpoints) == 2
    assert len(engine.generator.cpu_page_cache) == 2


def test_a_long_generation_is_requeued_and_keeps_its_ends(start: Start, cold: Any) -> None:
    engine = start(recurrent_checkpoint_interval=PAGE)
    first = tokens(250, 24)
    answer = engine.ask(first, 330, max_rq_tokens=PAGE)
    assert answer.token_ids == cold(first, 330).token_ids
    follow_up = [*first, *answer.token_ids, *tokens(20, 25)]
    assert engine.ask(follow_up, 5).cached == len(first) + 330 - 1
    assert engine.ask([*first, *tokens(5, 26)], 1).cached == len(first) - 1


def test_a_requeued_generation_says_what_its_prompt_found(start: Start) -> None:
    engine = start(recurrent_checkpoint_interval=PAGE)
    first = tokens(250, 27)
    engine.ask(first, 3)
    assert engine.ask(first, 330, max_rq_tokens=PAGE).cached == len(first) - 1


def test_a_banned_string_rewinds_a_run_that_resumed_inside_a_page(start: Start, cold: Any) -> None:
    engine = start()
    first = tokens(600, 28)
    answer = engine.ask(first, 10).token_ids
    follow_up = [*first, *answer, *tokens(20, 29)]
    free = cold(follow_up, 60).text
    banned = next(found for at in range(5, 50) if (found := free[at : at + 2]).isascii() and found.isprintable())
    found = engine.ask(follow_up, 60, banned_strings=[banned])
    assert banned.lower() not in found.text.lower()
    assert found.token_ids == cold(follow_up, 60, banned_strings=[banned]).token_ids


def stop_within(text: str) -> str:
    """Two characters of the text that come up only there; one before them is whole, so nothing else is held back."""
    return next(
        text[at : at + 2]
        for at in range(10, len(text) - 2)
        if text[at - 1 : at + 2].isascii() and text[at] not in text[:at]
    )


def test_tokens_of_a_stop_string_are_not_part_of_the_checkpoint(start: Start, cold: Any) -> None:
    first = tokens(600, 31)
    whole = cold(first, 80)
    stop = stop_within(whole.text)
    engine = start()
    stopped = engine.ask(first, 80, stop_conditions=[stop])
    assert stopped.last["eos_reason"] == "stop_string"
    num_sent = next(
        count
        for count in range(len(whole.token_ids))
        if engine.generator.tokenizer.decode(torch.tensor(whole.token_ids[: count + 1])).endswith(stop[0])
    )
    sent = whole.token_ids[:num_sent]
    follow_up = [*first, *sent, *tokens(20, 32)]
    found = engine.ask(follow_up, 10)
    assert found.cached == len(first) + num_sent
    assert_same(found, cold(follow_up, 10))


def test_a_request_that_is_not_retained_leaves_no_checkpoint_inside_a_page(start: Start) -> None:
    engine = start()
    engine.ask(tokens(600, 33), 10, retain=False, head=100)
    assert not len(engine.checkpoints.frontiers)
    assert not len(engine.generator.cpu_page_cache)


def test_without_system_memory_checkpoints_are_kept_where_pages_end(start: Start, cold: Any) -> None:
    engine = start(sysmem=0)
    first = tokens(1000, 34)
    answer = engine.ask(first, PAGE - 1000 % PAGE + 1).token_ids
    assert engine.ask([*first, *answer, 7], 1).cached == (1000 // PAGE + 1) * PAGE
    assert all(stashed["position"] % PAGE == 0 for stashed in engine.checkpoints.values())


def test_a_request_that_is_cancelled_while_it_prefills_leaves_its_progress(start: Start, cold: Any) -> None:
    engine = start()
    ids = tokens(1500, 35)
    job = engine.job(ids, 10)
    engine.generator.enqueue(job)
    for _ in range(3):
        engine.generator.iterate()
    job.keep_progress()
    engine.generator.cancel(job)
    found = engine.ask(ids, 10)
    assert found.cached == 3 * PAGE
    assert_same(found, cold(ids, 10))


def test_an_answer_that_is_cancelled_goes_on_from_what_was_sent(start: Start, cold: Any) -> None:
    engine = start()
    ids = tokens(500, 36)
    job = engine.job(ids, 50)
    engine.generator.enqueue(job)
    sent: list[int] = []
    while len(sent) < 20:
        for result in engine.generator.iterate():
            sent += result["token_ids"].flatten().tolist() if "token_ids" in result else []
    job.keep_progress()
    engine.generator.cancel(job)
    follow_up = [*ids, *sent, *tokens(30, 37)]
    found = engine.ask(follow_up, 10)
    assert found.cached == len(ids) + len(sent) - 1
    assert_same(found, cold(follow_up, 10))


@pytest.mark.parametrize("head", [100, PAGE, 700])
def test_two_conversations_with_one_head_share_its_state(start: Start, cold: Any, head: int) -> None:
    engine = start()
    shared = tokens(head, 38)
    engine.ask([*shared, *tokens(900, 39)], 10, head=head)
    other = [*shared, *tokens(300, 40)]
    found = engine.ask(other, 10, head=head)
    assert found.cached == head
    assert_same(found, cold(other, 10))


def test_without_system_memory_the_head_keeps_its_last_full_page(start: Start) -> None:
    engine = start(sysmem=0)
    shared = tokens(700, 41)
    engine.ask([*shared, *tokens(900, 42)], 10, head=700)
    assert engine.ask([*shared, *tokens(300, 43)], 1, head=700).cached == 2 * PAGE


def test_a_replayed_prefix_leaves_a_checkpoint_at_its_exact_end_and_no_other(start: Start, cold: Any) -> None:
    engine = start()
    prefix = tokens(700, 44)
    engine.ask(prefix, 1, replay=True)
    positions = sorted(stashed["position"] for stashed in engine.checkpoints.values())
    assert positions == [2 * PAGE, 700]
    prompt = [*prefix, *tokens(100, 45)]
    found = engine.ask(prompt, 10)
    assert found.cached == 700
    assert_same(found, cold(prompt, 10))


def test_frontiers_survive_a_restart_on_disk(start: Start, cold: Any, tmp_path: Path) -> None:
    first = tokens(1000, 46)
    before = start(disk_cache_dir=str(tmp_path))
    answer = before.ask(first, 30).token_ids
    before.generator.close()
    after = start(disk_cache_dir=str(tmp_path))
    follow_up = [*first, *answer, *tokens(20, 47)]
    found = after.ask(follow_up, 20)
    after.generator.close()
    assert found.cached == len(first) + len(answer) - 1
    assert_same(found, cold(follow_up, 20))


def test_what_is_not_retained_leaves_no_checkpoint_on_disk(start: Start, tmp_path: Path) -> None:
    before = start(disk_cache_dir=str(tmp_path))
    for page in before.generator.pagetable.all_pages:
        assert page.persistable
    before.ask(tokens(100, 48), 30, retain=False)
    before.generator.close()
    assert not list(tmp_path.rglob("*.rs"))


def test_counters_tell_what_was_kept_resumed_and_replayed(start: Start) -> None:
    engine = start()
    ids = tokens(1000, 49)
    answer = engine.ask(ids, 10).token_ids
    engine.ask([*ids, *answer, *tokens(10, 50)], 10)
    engine.ask([*ids[:900], *tokens(10, 51)], 10)
    counters = engine.checkpoints.counters()
    assert counters["checkpoint_hits_frontier"] == 1
    assert counters["checkpoint_hits_page"] == 1
    assert counters["tokens_resumed"] == 1009 + 3 * PAGE
    assert counters["tokens_replayed"] == 0
    assert counters["checkpoints"] > counters["checkpoints_in_pages"] > 0
    assert counters["checkpoint_bytes"] == sum(stash["checkpoint_size"] for stash in engine.checkpoints.values())


def test_tokens_that_are_replayed_for_want_of_a_checkpoint_are_counted(start: Start) -> None:
    engine = start(frontiers=False)
    ids = tokens(2000, 52)
    engine.ask(ids, 1)
    engine.ask([*ids[: 5 * PAGE], *tokens(10, 53)], 1)
    assert engine.checkpoints.counters()["tokens_replayed"] == 5 * PAGE
