"""exllamav3's real scheduler over the model: what is sampled, what is cached, and what the tiers give back."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from exllamav3 import ComboSampler, LLGuidanceFilter
from exllamav3.constants import PAGE_SIZE

TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = ["Name three fruits.", "What is the capital of France?", "Write one sentence about the sea."]


def ends(loaded: Any) -> list[int]:
    return list(loaded.model.config.eos_token_id_list)


def plain_choices(loaded: Any, ids: torch.Tensor, answered: list[int]) -> list[int]:
    """What transformers' own attention would choose after each token of an answer, and after the prompt."""
    network = loaded.model.network
    network.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            whole = torch.cat([ids, torch.tensor([answered], dtype=torch.long)], 1)
            logits = network(input_ids=whole, use_cache=False).logits
    finally:
        network.set_attn_implementation("exllamav3_pages")
    return logits[0, ids.shape[1] - 1 :].argmax(-1).tolist()


@pytest.mark.model
def test_greedy_answers_are_those_of_transformers_batched_or_not(demo: Any, answer: Any, job: Any) -> None:
    prompts = [demo.ids(TURN.format(question)) for question in QUESTIONS]
    generator = demo.generator()
    batched = answer(generator, *(job(ids, 12, stop_conditions=ends(demo)) for ids in prompts))
    for ids, found in zip(prompts, batched, strict=True):
        choices = plain_choices(demo, ids, found.token_ids)
        assert found.token_ids == choices[: len(found.token_ids)]
        if found.last["eos_reason"] == "stop_token":
            assert choices[-1] in ends(demo)
    alone = demo.generator()
    single = [answer(alone, job(ids, 12, stop_conditions=ends(demo)))[0] for ids in prompts]
    assert [one.token_ids for one in single] == [one.token_ids for one in batched]


@pytest.mark.model
def test_a_cached_prompt_is_answered_like_a_cold_one(demo: Any, answer: Any, job: Any) -> None:
    head = "<|im_start|>system\n" + "You work for a library. Be brief and kind. " * 30 + "<|im_end|>\n"
    ids = demo.ids(head + TURN.format(QUESTIONS[0]))
    generator = demo.generator()
    cold = answer(generator, job(ids, 6))[0]
    cached = answer(generator, job(ids, 6))[0]
    other = answer(generator, job(demo.ids(head + TURN.format(QUESTIONS[1])), 6))[0]
    other_cold = answer(demo.generator(), job(demo.ids(head + TURN.format(QUESTIONS[1])), 6))[0]
    assert cold.last["cached_tokens"] == 0
    assert cached.last["cached_tokens"] == ids.shape[1] - 1
    assert cached.token_ids == cold.token_ids
    assert other.last["cached_tokens"] >= PAGE_SIZE
    assert other.token_ids == other_cold.token_ids


@pytest.mark.model
def test_a_json_schema_holds(demo: Any, answer: Any, job: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer", "maximum": 999}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    samplers = [None, ComboSampler(temperature=1.0, rep_p=1.3, freq_p=0.3)]
    generator = demo.generator()
    for sampler in samplers:
        grammar = LLGuidanceFilter(demo.tokenizer, json_schema=schema, eos_after_completed=True)
        options = {"sampler": sampler} if sampler else {}
        made = job(demo.ids(TURN.format(QUESTIONS[1])), 60, filters=[grammar], seed=3, **options)
        found = answer(generator, made)[0]
        value = json.loads(found.text)
        assert value["city"] in ("Paris", "Rome")
        assert value["people"] <= 999


@pytest.mark.model
def test_a_banned_string_does_not_appear_and_the_answer_goes_on(demo: Any, answer: Any, job: Any) -> None:
    ids = demo.ids(TURN.format(QUESTIONS[0]))
    generator = demo.generator()
    free = answer(generator, job(ids, 14))[0]
    word = free.text.split()[2]
    banned = answer(generator, job(ids, 14, banned_strings=[word]))[0]
    assert word in free.text
    assert word.lower() not in banned.text.lower()
    assert banned.last["new_tokens"] == 14


@pytest.mark.model
def test_probabilities_are_those_of_the_raw_logits(demo: Any, answer: Any, job: Any) -> None:
    ids = demo.ids(TURN.format(QUESTIONS[1]))
    generator = demo.generator()
    made = job(ids, 1, return_probs=True, return_top_tokens=3, sampler=ComboSampler(temperature=0.2, top_k=2), seed=1)
    result = answer(generator, made)[0].last
    with torch.inference_mode():
        network = demo.model.network
        network.set_attn_implementation("sdpa")
        probs = torch.softmax(network(input_ids=ids, use_cache=False).logits[0, -1], -1)
        network.set_attn_implementation("exllamav3_pages")
    top = probs.topk(3)
    assert result["top_k_tokens"].flatten().tolist() == top.indices.tolist()
    assert torch.allclose(result["top_k_probs"].flatten(), top.values, atol=1e-4)


def test_a_seed_gives_the_same_answer_and_another_seed_another(
    tiny: Any, answer: Any, job: Any, token_ids: Any
) -> None:
    generator = tiny.generator()

    def sampled(seed: int) -> list[int]:
        sampler = ComboSampler(temperature=1.5, top_p=0.95, pres_p=0.1)
        return answer(generator, job(token_ids(20, seed=1), 30, sampler=sampler, seed=seed))[0].token_ids

    assert sampled(7) == sampled(7)
    assert sampled(7) != sampled(8)


def test_a_stop_string_over_several_tokens_is_cut_where_it_begins(
    tiny: Any, answer: Any, job: Any, token_ids: Any
) -> None:
    ids = token_ids(30, seed=2)
    printable = {tiny.tokenizer.single_id(chr(code)) for code in range(33, 127)}
    others = dict.fromkeys(set(range(259)) - printable, float("-inf"))
    sampled = {"sampler": ComboSampler(temperature=1.0, logit_bias=others), "seed": 4}
    free = answer(tiny.generator(), job(ids, 60, **sampled))[0]
    # One token is one character here, so this stop string takes four tokens to appear.
    stop = free.text[30:34]
    stopped = answer(tiny.generator(), job(ids, 60, stop_conditions=[stop], **sampled))[0]
    assert stopped.last["eos_reason"] == "stop_string"
    assert stopped.text == free.text[: free.text.index(stop)]
    unfinished = answer(tiny.generator(), job(ids, 60, stop_conditions=[free.text[-2:] + "never"], **sampled))[0]
    assert unfinished.text == free.text


def test_jobs_that_name_no_limit_run_at_once(tiny: Any, job: Any, token_ids: Any) -> None:
    generator = tiny.generator(max_num_tokens=4096)
    jobs = [job(token_ids(20, seed=seed), None, max_rq_tokens=256) for seed in range(4)]
    for made in jobs:
        generator.enqueue(made)
    generator.iterate()
    assert len(generator.active_jobs) == 4
    generator.clear_queue()


def test_a_long_answer_is_the_same_when_it_is_queued_again_on_the_way(
    tiny: Any, answer: Any, job: Any, token_ids: Any
) -> None:
    ids = token_ids(40, seed=9)
    whole = answer(tiny.generator(), job(ids, 300, max_rq_tokens=1024))[0]
    parts = answer(tiny.generator(), job(ids, 300, max_rq_tokens=256))[0]
    assert parts.token_ids == whole.token_ids
    assert parts.last["new_tokens"] == 300


def test_n_gram_drafts_change_no_token(tiny: Any, answer: Any, job: Any, token_ids: Any) -> None:
    ids = token_ids(12, seed=3).repeat(1, 12)
    plain = answer(tiny.generator(), job(ids, 40))[0]
    drafted = answer(tiny.generator(ngram_match_min=2, num_draft_tokens=3), job(ids, 40))[0]
    assert drafted.token_ids == plain.token_ids
    assert drafted.last["accepted_draft_tokens"] > 0


def page_bytes(generator: Any) -> dict[bytes, list[bytes]]:
    """What complete pages hold in every layer, by the hash of their tokens."""
    pages = generator.pagetable
    found = {}
    for page in [*pages.unreferenced_pages.values(), *pages.referenced_pages.values()]:
        if page.kv_position == PAGE_SIZE:
            tensors = generator.cache.get_all_tensors()
            found[page.phash] = [tensor[page.page_index].numpy().tobytes() for tensor in tensors]
    return found


def test_pages_come_back_from_system_memory_byte_for_byte(
    tiny: Any, answer: Any, job: Any, token_ids: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = tiny.generator(max_num_tokens=1024, cpu_cache_size=16 << 20)
    ids = token_ids(700, seed=4)
    cold = answer(generator, job(ids, 8))[0]
    before = page_bytes(generator)
    for seed in (5, 6):
        answer(generator, job(token_ids(900, seed=seed), 4))
    assert not set(page_bytes(generator)) & set(before)
    restored = answer(generator, job(ids, 8))[0]
    after = page_bytes(generator)
    assert generator.cpu_page_cache.metrics["restores"] == 2
    assert restored.last["cached_tokens"] == 2 * PAGE_SIZE
    assert restored.token_ids == cold.token_ids
    assert {key: after[key] for key in before} == before
    generator.close()
    assert capsys.readouterr().out == ""  # no complaint that memory could not be locked for a GPU


def test_pages_come_back_from_disk_in_another_generator(
    tiny: Any, answer: Any, job: Any, token_ids: Any, tmp_path: Path
) -> None:
    tiers = {"max_num_tokens": 1024, "cpu_cache_size": 16 << 20, "disk_cache_dir": str(tmp_path)}
    ids = token_ids(700, seed=7)
    first = tiny.generator(**tiers)
    cold = answer(first, job(ids, 8))[0]
    before = page_bytes(first)
    first.close()
    second = tiny.generator(**tiers)
    restored = answer(second, job(ids, 8))[0]
    after = page_bytes(second)
    assert second.cpu_page_cache.metrics["promotions"] == 2
    assert restored.token_ids == cold.token_ids
    assert {key: after[key] for key in before} == before
    second.close()


def test_defragmenting_moves_pages_and_keeps_what_they_hold(tiny: Any, answer: Any, job: Any, token_ids: Any) -> None:
    generator = tiny.generator(max_num_tokens=4096)
    prompts = [token_ids(length, seed=length) for length in (600, 300, 800)]
    expected = [found.token_ids for found in answer(generator, *(job(ids, 6) for ids in prompts))]
    before, order = page_bytes(generator), [page.page_index for page in generator.pagetable.all_pages]
    generator.pagetable.access_serial += 8 * generator.pagetable.max_pages
    generator.pagetable.defrag()
    assert [page.page_index for page in generator.pagetable.all_pages] != order
    assert page_bytes(generator) == before
    again = answer(generator, *(job(ids, 6) for ids in prompts))
    assert [found.token_ids for found in again] == expected
    assert all(found.last["cached_tokens"] for found in again)


def test_under_pressure_every_answer_is_still_its_own(tiny: Any, answer: Any, job: Any, token_ids: Any) -> None:
    """Many prompts with shared heads in a small cache with a tier behind it: pages are shared, evicted, restored."""
    generator = tiny.generator(max_num_tokens=2048, cpu_cache_size=2 << 20)
    heads = [token_ids(length, seed=length) for length in (300, 520, 700)]
    random = Random(5)
    for wave in range(4):
        prompts = []
        for _ in range(5):
            head = random.choice(heads)[:, : random.choice([200, 256, 299])]
            prompts.append(torch.cat([head, token_ids(random.randint(1, 300), seed=random.randint(0, 9))], 1))
        found = answer(generator, *(job(ids, random.randint(1, 40), max_rq_tokens=256) for ids in prompts))
        for ids, one in zip(prompts, found, strict=True):
            assert one.token_ids == plain_choices(tiny, ids, one.token_ids)[:-1], wave
        assert not generator.pagetable.referenced_pages
    assert generator.cpu_page_cache.metrics["restores"] > 0
    generator.close()
