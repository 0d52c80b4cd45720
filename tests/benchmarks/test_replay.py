"""The fast orders, next to exllamav3's page table and to the policy's own modules."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trace_study import claude_code, mooncake
from trace_study.credit import SharedHeadCredit
from trace_study.credited_share import CreditedShare
from trace_study.engine_order import EngineOrder
from trace_study.leaf_first import LeafFirst, NextUse, Recency
from trace_study.page_table import make_page_table, replay_on
from trace_study.replay import Order, replay
from trace_study.stock import Lru, Tree
from trace_study.workload import PrefixTree, Request, Workload

from exllamav3_adapters.cpu.install import install
from exllamav3_adapters.policies.aging_credit import AgingCredit
from exllamav3_adapters.policies.leaf_order import credited_pages

CAPACITY = 40
HALF_LIFE = 50.0
HEAD_PAGES = 6


def random_workload(seed: int) -> Workload:
    """Conversations of a few shared heads that take turns, lengthen, part and stop."""
    draw = random.Random(seed)
    tree = PrefixTree()
    conversations: list[list[str]] = []
    requests = []
    for number in range(600):
        if not conversations or draw.random() < 0.2:
            head = draw.randrange(5)
            conversations.append([f"head-{head}-{page}" for page in range(draw.randrange(1, 5) + head)])
            conversations = conversations[-8:]
        pages = draw.choice(conversations)
        if draw.random() < 0.1:
            del pages[max(1, len(pages) - 3) :]
        pages += [f"{number}-{page}" for page in range(draw.randrange(4))]
        del pages[CAPACITY - 8 :]
        requests.append(Request(seconds=number * 3.0, prompt_tokens=0, chain=tree.chain(pages), session=0, first=False))
    return Workload.of(f"random {seed}", requests, tree)


def beginning(workload: Workload, num_requests: int) -> Workload:
    return Workload(workload.name, workload.requests[:num_requests], workload.parents)


@pytest.fixture(scope="session")
def beginnings(traces: Path) -> list[tuple[Workload, int]]:
    """First requests of the traces, and a cache size in pages that they overfill several times."""
    users = claude_code.as_users(claude_code.load_sessions(traces), 16)
    mooncakes = [mooncake.load(traces, trace) for trace in mooncake.FILE_NAMES]
    return [(beginning(users, 60), 1200), *((beginning(workload, 120), 900) for workload in mooncakes)]


@pytest.mark.parametrize(("policy", "order"), [("tree", Tree), ("lru", Lru)])
@pytest.mark.parametrize("seed", range(4))
def test_stock_orders_serve_what_the_page_table_serves(
    policy: str, order: Callable[[Workload], Order], seed: int
) -> None:
    install()
    workload = random_workload(seed)
    page_table = make_page_table(CAPACITY)
    page_table.eviction_policy = policy
    assert replay(workload, CAPACITY, order(workload)).tolist() == replay_on(page_table, workload).tolist()


@pytest.mark.parametrize(("policy", "order"), [("tree", Tree), ("lru", Lru)])
def test_stock_orders_serve_what_the_page_table_serves_on_real_prefixes(
    policy: str, order: Callable[[Workload], Order], beginnings: list[tuple[Workload, int]]
) -> None:
    install()
    for workload, capacity in beginnings:
        page_table = make_page_table(capacity)
        page_table.eviction_policy = policy
        hits = replay(workload, capacity, order(workload))
        assert hits.tolist() == replay_on(page_table, workload).tolist()
        assert page_table.metrics["evictions_live"] > capacity / 4, f"{workload.name} hardly evicts"


@pytest.mark.parametrize("credited_pages", [0, 5, CAPACITY])
@pytest.mark.parametrize("seed", range(4))
def test_the_credited_share_serves_what_the_policy_itself_serves(seed: int, credited_pages: int) -> None:
    workload = random_workload(seed)
    fast = CreditedShare(
        workload,
        SharedHeadCredit(workload, half_life=HALF_LIFE, pages=HEAD_PAGES),
        credited_pages=credited_pages,
    )
    policy = EngineOrder(workload, CAPACITY, credit(), credited_pages=credited_pages)
    assert replay(workload, CAPACITY, fast).tolist() == replay(workload, CAPACITY, policy).tolist()


def test_the_credited_share_serves_what_the_policy_itself_serves_on_real_prefixes(
    beginnings: list[tuple[Workload, int]],
) -> None:
    for workload, capacity in beginnings:
        fast = CreditedShare(
            workload, SharedHeadCredit(workload, half_life=HALF_LIFE, pages=HEAD_PAGES), credited_pages=capacity // 20
        )
        policy = EngineOrder(workload, capacity, credit(), credited_pages=capacity // 20)
        assert replay(workload, capacity, fast).tolist() == replay(workload, capacity, policy).tolist()


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_credited_share_serves_what_the_page_table_with_the_policy_serves(seed: int, share: float) -> None:
    install()
    from exllamav3_adapters.exl3.aging_pagetable import install_aging

    workload, clock = random_workload(seed), Clock()
    page_table = make_page_table(CAPACITY)
    install_aging(page_table.generator, credit=credit(), share=share, clock=clock)
    fast = CreditedShare(
        workload,
        SharedHeadCredit(workload, half_life=HALF_LIFE, pages=HEAD_PAGES),
        credited_pages=credited_pages(CAPACITY, share),
    )
    assert replay(workload, CAPACITY, fast).tolist() == replay_on(page_table, workload, clock.set).tolist()


class Clock:
    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    def set(self, seconds: float) -> None:
        self._seconds = seconds


def credit() -> AgingCredit:
    return AgingCredit(half_life_seconds=HALF_LIFE, hit_cap_pages=HEAD_PAGES, weight_cap=0.0, max_entries=10**6)


@pytest.mark.parametrize("seed", range(4))
def test_no_order_beats_the_one_that_knows_the_future(seed: int) -> None:
    workload = random_workload(seed)
    bound = replay(workload, CAPACITY, LeafFirst(workload, NextUse(workload))).sum()
    for order in (Tree(workload), Lru(workload), LeafFirst(workload, Recency(workload))):
        assert replay(workload, CAPACITY, order).sum() <= bound


def test_a_cache_without_limit_serves_all_that_was_seen_before() -> None:
    workload = random_workload(0)
    hits = replay(workload, workload.num_pages, LeafFirst(workload, Recency(workload)))
    assert np.array_equal(hits * 256, workload.unbounded_hits)


def test_a_request_larger_than_the_cache_is_refused() -> None:
    workload = random_workload(0)
    with pytest.raises(ValueError, match="needs"):
        replay(workload, 3, LeafFirst(workload, Recency(workload)))
