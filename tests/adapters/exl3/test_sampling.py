"""What each sampling parameter does to an answer. The tiny model's tokens are bytes, its ends of turn 2."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from exl3_requests import answer, greedy, prompt
from exllamav3 import Job

from exllamav3_adapters.contract import GenerationParams, Grammar, TokenLogprob
from exllamav3_adapters.errors import InvalidRequest, JobFailed
from exllamav3_adapters.exl3.engine import Exl3Engine

Load = Callable[..., Awaitable[Exl3Engine]]
OnNextJob = Callable[[Callable[[Job], None]], None]
END = 2
VOCABULARY = 259


def sampled(max_tokens: int = 24, **params: Any) -> GenerationParams:
    return GenerationParams(max_tokens=max_tokens, seed=5, **({"temperature": 0.8, "ignore_eos": True} | params))


@pytest.fixture
def end_first(on_next_job: OnNextJob) -> Callable[[Exl3Engine, str], Awaitable[None]]:
    """Has the next answer end its turn at once, then go on with a text."""

    async def arm(engine: Exl3Engine, text: str) -> None:
        after = (await engine.tokenize(text)).token_ids
        on_next_job(lambda job: job.constrain_output_now(torch.tensor([[END, *after]])))

    return arm


async def test_an_end_of_turn_ends_the_answer(load: Load, end_first: Any) -> None:
    engine = await load()
    await end_first(engine, "more")
    text, finished = await answer(engine.generate(prompt(20), greedy(5)))
    assert (text, finished.reason, finished.completion_tokens) == ("", "stop", 1)


async def test_ignore_eos_goes_on_to_the_last_token(load: Load, end_first: Any) -> None:
    engine = await load()
    await end_first(engine, "more")
    text, finished = await answer(engine.generate(prompt(20), greedy(5, ignore_eos=True)))
    assert (text, finished.reason, finished.completion_tokens) == ("more", "length", 5)


async def test_ignore_eos_goes_on_to_a_stop_string(load: Load, end_first: Any) -> None:
    engine = await load()
    await end_first(engine, "more; and more")
    text, finished = await answer(engine.generate(prompt(20), greedy(20, ignore_eos=True, stop=(";",))))
    assert (text, finished.reason) == ("more", "stop")


async def test_ignore_eos_outlasts_a_requeue(load: Load, on_next_job: OnNextJob) -> None:
    engine = await load()
    on_next_job(lambda job: job.constrain_output_now(torch.tensor([[65] * 300 + [END] + [66] * 10])))
    _, finished = await answer(engine.generate(prompt(20), greedy(311, ignore_eos=True)))
    assert (finished.reason, finished.completion_tokens) == ("length", 311)


async def test_min_tokens_holds_the_end_of_turn_back(load: Load) -> None:
    engine = await load()
    eager = {"logit_bias": {END: 100.0}}
    _, at_once = await answer(engine.generate(prompt(20), greedy(20, **eager)))
    _, held = await answer(engine.generate(prompt(20), greedy(20, min_tokens=7, **eager)))
    assert (at_once.completion_tokens, held.completion_tokens) == (1, 8)


async def test_a_banned_token_is_never_sampled(load: Load) -> None:
    engine = await load()
    free = await answer(engine.generate(prompt(20), greedy(24, ignore_eos=True)))
    wanted = (await engine.tokenize(free[0])).token_ids[0]
    banned = await answer(engine.generate(prompt(20), greedy(24, ignore_eos=True, banned_tokens=(wanted,))))
    assert wanted not in (await engine.tokenize(banned[0])).token_ids
    likely = tuple(range(3, VOCABULARY - 1))
    only, _ = await answer(engine.generate(prompt(20), sampled(8, banned_tokens=(0, 1, END, *likely))))
    assert len(set(only)) == 1


async def test_a_bias_draws_a_token_and_keeps_another_away(load: Load) -> None:
    engine = await load()
    (letter,) = (await engine.tokenize("A")).token_ids
    for params in (greedy(6, logit_bias={letter: 100.0}), sampled(6, logit_bias={letter: 100.0})):
        assert (await answer(engine.generate(prompt(20), params)))[0] == "AAAAAA"
    both = greedy(6, logit_bias=a_before_b(letter), banned_tokens=(letter, letter + 1))
    assert (await answer(engine.generate(prompt(20), both)))[0] == "CCCCCC"


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"banned_tokens": (5, VOCABULARY)}, "banned_tokens"),
        ({"banned_tokens": (-1,)}, "banned_tokens"),
        ({"logit_bias": {VOCABULARY: 1.0}}, "logit_bias"),
    ],
)
async def test_a_token_id_outside_the_vocabulary_is_the_requests_fault(
    load: Load, params: dict[str, Any], name: str
) -> None:
    engine = await load()
    with pytest.raises(InvalidRequest, match=f"^{name}: token ids must be from 0 to 258; one is -?\\d+$") as caught:
        await answer(engine.generate(prompt(10), greedy(**params)))
    assert caught.value.param == name
    assert (await engine.stats()).counters["requests"] == 0


async def test_a_vocabulary_that_is_banned_whole_is_the_requests_fault(load: Load) -> None:
    engine = await load()
    with pytest.raises(InvalidRequest, match="every token"):
        await answer(engine.generate(prompt(10), greedy(banned_tokens=tuple(range(VOCABULARY)))))


async def test_a_grammar_of_banned_tokens_alone_fails_its_own_job(load: Load) -> None:
    engine = await load()
    (letter,) = (await engine.tokenize("A")).token_ids
    params = greedy(4, grammar=Grammar(kind="regex", source="A+"), banned_tokens=(letter,))
    with pytest.raises((JobFailed, InvalidRequest)):
        await answer(engine.generate(prompt(10), params))
    assert (await answer(engine.generate(prompt(10), greedy(4))))[1].reason


def a_before_b(letter: int) -> dict[int, float]:
    """A bias that leaves the model nothing to say: A, or B where A is held back by more than its lead."""
    return {letter: 200.0, letter + 1: 150.0, letter + 2: 100.0}


async def letter_a(engine: Exl3Engine) -> int:
    (letter,) = (await engine.tokenize("A")).token_ids
    return letter


@pytest.mark.parametrize(
    ("dry", "loops"),
    [
        ({}, True),
        ({"dry_multiplier": 80.0}, False),
        ({"dry_multiplier": 80.0, "dry_allowed_length": 20}, True),
        ({"dry_multiplier": 80.0, "dry_range": 2}, True),
        ({"dry_multiplier": 80.0, "dry_sequence_breakers": ("A",)}, True),
        ({"dry_multiplier": 80.0, "dry_sequence_breakers": ()}, False),
    ],
    ids=str,
)
async def test_dry_ends_a_loop_that_it_may_follow(load: Load, dry: dict[str, Any], loops: bool) -> None:
    engine = await load()
    params = greedy(12, logit_bias=a_before_b(await letter_a(engine)), **dry)
    text, _ = await answer(engine.generate(prompt(20), params))
    assert (text == "A" * 12) is loops
    assert text.startswith("AAA")


@pytest.mark.parametrize(
    ("reach", "text"),
    [
        ({"penalty_range": 1}, "ABABAB"),
        ({"penalty_range": 0}, "AAAAAA"),
        ({"penalty_range": 0, "repetition_decay": 2}, "ABABAB"),
    ],
    ids=str,
)
async def test_penalties_look_back_no_further_than_their_range(load: Load, reach: dict[str, int], text: str) -> None:
    """With a decay of two tokens the last one counts half and the one before it not at all."""
    engine = await load()
    params = greedy(6, logit_bias=a_before_b(await letter_a(engine)), presence_penalty=120.0, **reach)
    assert (await answer(engine.generate(prompt(20), params)))[0] == text


async def test_penalties_look_at_everything_by_default(load: Load) -> None:
    engine = await load()
    params = greedy(3, logit_bias=a_before_b(await letter_a(engine)), presence_penalty=190.0)
    assert (await answer(engine.generate(prompt(20), params)))[0] == "ABC"


async def test_xtc_leaves_out_the_likeliest_of_several_likely_ones(load: Load) -> None:
    engine = await load()
    params = sampled(60, temperature=1.0, xtc_probability=1.0, xtc_threshold=0.05)
    chosen: list[TokenLogprob] = []
    async for event in engine.generate(prompt(20), replace(params, top_logprobs=2)):
        chosen += getattr(event, "logprobs", ())
    # Line ends and special tokens are never left out.
    several = [token for token in chosen if math.exp(token.top[1][1]) > 0.05 and all(len(t) == 1 for t, _ in token.top)]
    several = [token for token in several if not any(text == "\n" for text, _ in token.top)]
    assert several
    assert all(token.logprob < token.top[0][1] for token in several)


@pytest.mark.parametrize("temperature_last", [False, True])
async def test_adaptive_p_chooses_tokens_around_its_target(load: Load, temperature_last: bool) -> None:
    engine = await load()
    letters = (await engine.tokenize("ABC")).token_ids
    bias = {letters[0]: 100.0, letters[1]: 98.5, letters[2]: 97.0}
    params = sampled(60, logit_bias=bias, temperature=1.0, temperature_last=temperature_last)
    likeliest = (await answer(engine.generate(prompt(20), params)))[0]
    target = replace(params, adaptive_target=0.15, adaptive_decay=0.0)
    less = (await answer(engine.generate(prompt(20), target)))[0]
    top = max(set(likeliest), key=likeliest.count)
    assert less.count(top) < likeliest.count(top) / 2


async def test_the_temperature_may_come_last(load: Load) -> None:
    """A high temperature makes all tokens likely; applied after min-p it has none but the likeliest to choose from."""
    engine = await load()
    letters = (await engine.tokenize("AB")).token_ids
    hot = sampled(40, logit_bias=dict.fromkeys(letters, 50.0), min_p=0.01, temperature=80.0)
    first, _ = await answer(engine.generate(prompt(20), hot))
    last, _ = await answer(engine.generate(prompt(20), replace(hot, temperature_last=True)))
    assert set(last) == {"A", "B"}
    assert len(set(first)) > 2


async def test_the_same_seed_gives_the_same_answer_whatever_is_sampled_with(load: Load) -> None:
    engine = await load()
    everything = sampled(
        30,
        banned_tokens=(70,),
        logit_bias={80: 3.0},
        repetition_penalty=1.1,
        presence_penalty=0.2,
        penalty_range=64,
        repetition_decay=16,
        dry_multiplier=0.8,
        dry_sequence_breakers=("\n", ":"),
        temperature_last=True,
        min_p=0.001,
        top_k=100,
        top_p=0.99,
        xtc_probability=0.5,
        xtc_threshold=0.05,
        adaptive_target=0.4,
    )
    first, _ = await answer(engine.generate(prompt(20), everything))
    second, _ = await answer(engine.generate(prompt(20), everything))
    other, _ = await answer(engine.generate(prompt(20), replace(everything, seed=6)))
    assert first == second != other
