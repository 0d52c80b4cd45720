"""What is checkpointed where, and the orders next to exllamav3's cache and to the policy's own module."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from checkpoint_study.candidates import all_candidates
from checkpoint_study.foresight import Foresight
from checkpoint_study.orders import Lru, Scored
from checkpoint_study.prompts import Place, Placement, Prompt, Prompts, load_users, prompts_of
from checkpoint_study.replay import replay
from checkpoint_study.study import Case, costs
from trace_study.claude_code import BLOCK_TOKENS
from trace_study.workload import PrefixTree, Request, Workload

from exllamav3_adapters.cpu.install import install
from exllamav3_adapters.policies.gds import GreedyDualSize
from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost

EVERYWHERE = Placement.HEAD_ENDS | Placement.PROMPT_ENDS | Placement.ANSWER_ENDS


def workload_of(*chats: tuple[str, int, int]) -> Workload:
    """From each prompt's blocks, a letter a block, its head's length in blocks, and its answer's tokens."""
    tree = PrefixTree()
    requests = [
        Request(
            seconds=float(number),
            prompt_tokens=len(blocks) * BLOCK_TOKENS + 1,
            chain=tree.chain(blocks),
            session=0,
            first=False,
            head_pages=head,
            answer_tokens=answer,
        )
        for number, (blocks, head, answer) in enumerate(chats)
    ]
    return Workload.of("letters", requests, tree)


def random_workload(seed: int) -> Workload:
    draw = random.Random(seed)
    chats: list[str] = []
    prompts = []
    for number in range(250):
        if not chats or draw.random() < 0.2:
            chats = [*chats[-6:], "head " * draw.randrange(1, 3)]
        blocks = draw.choice(chats)
        chats.remove(blocks)
        if draw.random() < 0.1:
            blocks = blocks[: max(5, len(blocks) - 6)]
        blocks += "".join(chr(0x4E00 + number * 4 + block) for block in range(draw.randrange(4)))
        chats.append(blocks)
        prompts.append((blocks, 5, draw.randrange(200)))
    return workload_of(*prompts)


def places(prompts: Prompts, index: int) -> list[int]:
    """Positions of what a request leaves, in blocks."""
    return [prompts.positions[place] // BLOCK_TOKENS for place in prompts.prompts[index].made]


def test_a_request_leaves_checkpoints_at_the_ends_of_its_head_its_prompt_and_its_answer() -> None:
    workload = workload_of(("hhab", 2, 3 * BLOCK_TOKENS))
    assert places(prompts_of(workload, EVERYWHERE), 0) == [2, 4, 7]
    assert places(prompts_of(workload, Placement.PROMPT_ENDS), 0) == [4]


def test_an_answer_is_part_of_the_first_later_prompt_that_has_room_for_it() -> None:
    workload = workload_of(("ab", 0, 2 * BLOCK_TOKENS), ("abx", 0, 0), ("abcde", 0, 0), ("abcdf", 0, 0))
    prompts = prompts_of(workload, EVERYWHERE)
    answer_end = prompts.prompts[0].made[-1]
    assert [answer_end in prompt.path for prompt in prompts.prompts] == [False, False, True, True]


def test_an_answer_that_no_prompt_continues_is_a_place_of_its_own() -> None:
    prompts = prompts_of(workload_of(("ab", 0, 100), ("ac", 0, 100)), EVERYWHERE)
    assert prompts.prompts[0].made[-1] != prompts.prompts[1].made[-1]


def test_an_answer_of_less_than_a_block_ends_where_its_prompt_does() -> None:
    assert places(prompts_of(workload_of(("ab", 0, 10)), EVERYWHERE), 0) == [2]


def test_a_request_resumes_at_the_deepest_checkpoint_inside_it() -> None:
    prompts = prompts_of(workload_of(("ab", 0, 0), ("abcd", 0, 0), ("abcde", 0, 0), ("abx", 0, 0)), EVERYWHERE)
    assert (replay(prompts, 10, Lru()) // BLOCK_TOKENS).tolist() == [0, 2, 4, 2]


def test_a_checkpoint_that_made_room_is_not_resumed() -> None:
    prompts = prompts_of(workload_of(("ab", 0, 0), ("xy", 0, 0), ("abc", 0, 0)), EVERYWHERE)
    assert replay(prompts, 1, Lru()).tolist() == [0, 0, 0]


def test_what_a_request_resumes_past_is_not_made_again() -> None:
    prompts = prompts_of(workload_of(("hhab", 2, 0), ("hhabc", 2, 0)), EVERYWHERE)
    order = Lru()
    order.add("occupied", position=1, size=1, path=[])
    replay(prompts, 2, order)
    head, first, second = (*prompts.prompts[0].made, prompts.prompts[1].made[-1])
    assert (head in order, first in order, second in order) == (False, True, True)


class EngineCache:
    """exllamav3's own cache of checkpoints, each as large as one byte."""

    def __init__(self, slots: int) -> None:
        from exllamav3.cache.recurrent import RecurrentCache

        self._cache = RecurrentCache(None, slots)
        self.checkpoint_size = 1

    def stash(self) -> dict[str, int]:
        return {"checkpoint_size": 1}

    def resumed(self, prompts: Prompts) -> list[int]:
        return [self._resumed(prompt, prompts.positions) for prompt in prompts.prompts]

    def _resumed(self, prompt: Prompt, positions: dict[Place, int]) -> int:
        found = next((place for place in reversed(prompt.path) if self._cache.get_stashed(place) is not None), None)
        position = 0 if found is None else positions[found]
        for place in prompt.made:
            if positions[place] > position:
                self._cache.put(place, self)
        return position


@pytest.mark.parametrize("slots", [3, 8, 20])
@pytest.mark.parametrize("seed", range(4))
def test_lru_resumes_where_the_engines_own_cache_does(seed: int, slots: int) -> None:
    install()
    prompts = prompts_of(random_workload(seed), EVERYWHERE)
    assert replay(prompts, slots, Lru()).tolist() == EngineCache(slots).resumed(prompts)


@pytest.mark.parametrize("slots", [3, 8, 20])
@pytest.mark.parametrize("seed", range(4))
def test_a_score_of_greedy_dual_size_resumes_where_the_policy_itself_does(seed: int, slots: int) -> None:
    prompts = prompts_of(random_workload(seed), EVERYWHERE)
    scored = Scored(lambda use, cost, _: use.inflation + cost, TYPICAL)
    policy = GreedyDualSize[Place](TYPICAL, inner_weight=1.0)
    assert replay(prompts, slots, scored).tolist() == replay(prompts, slots, policy).tolist()


@pytest.mark.full
def test_a_score_of_greedy_dual_size_resumes_where_the_policy_itself_does_on_real_prompts(traces: Path) -> None:
    users = load_users(traces, 16)
    beginning = Workload(users.name, users.requests[:800], users.parents)
    prompts = prompts_of(beginning, EVERYWHERE)
    scored = Scored(
        lambda use, cost, checkpoint: use.inflation + cost * (0.25 if checkpoint.children else 1.0), TYPICAL
    )
    resumed = replay(prompts, 32, GreedyDualSize[Place](TYPICAL))
    assert resumed.tolist() == replay(prompts, 32, scored).tolist()
    assert resumed.tolist() != replay(prompts, len(prompts.positions), Lru()).tolist(), "32 slots are enough"


@pytest.mark.parametrize("seed", range(3))
def test_no_order_resumes_deeper_than_with_a_slot_for_every_checkpoint(seed: int) -> None:
    prompts = prompts_of(random_workload(seed), EVERYWHERE)
    unlimited = replay(prompts, len(prompts.positions), Lru())
    for candidate in all_candidates():
        assert np.all(replay(prompts, 6, candidate.make(prompts, TYPICAL)) <= unlimited), candidate.name


@pytest.mark.parametrize("seed", range(3))
def test_foresight_recomputes_less_than_orders_that_have_none(seed: int) -> None:
    prompts = prompts_of(random_workload(seed), EVERYWHERE)
    case = Case(1, EVERYWHERE, prompts, TYPICAL)
    foresight = costs(case, replay(prompts, 6, Foresight(prompts, TYPICAL))).sum()
    for order in (Lru(), GreedyDualSize[Place](TYPICAL)):
        assert foresight < costs(case, replay(prompts, 6, order)).sum()


def test_a_request_costs_what_lies_between_its_checkpoint_and_its_end() -> None:
    prompts = prompts_of(workload_of(("ab", 0, 0), ("abc", 0, 0)), EVERYWHERE)
    case = Case(1, EVERYWHERE, prompts, cost := PrefillCost(1.0, 2.0))
    assert costs(case, replay(prompts, 5, Lru())).tolist() == [cost.between(0, 129), cost.between(128, 193)]
