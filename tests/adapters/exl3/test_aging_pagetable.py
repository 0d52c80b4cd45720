"""The policy on exllamav3's page table."""

from __future__ import annotations

from typing import Any

import pytest
from exllamav3.generator.pagetable import CachePage, PageTable
from page_table_run import PageTableRun, assert_is_up_to_date, make_page_table, rebuilt_order

from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.aging_pagetable import AgingPageTable, install_aging
from exllamav3_adapters.policies.aging_credit import AgingCredit
from exllamav3_adapters.policies.leaf_order import VictimClass

NUM_PAGES = 24


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def aging_table(share: float, num_pages: int = NUM_PAGES, clock: Clock | None = None) -> AgingPageTable:
    credit = AgingCredit(half_life_seconds=60.0, hit_cap_pages=4, weight_cap=0.0, max_entries=10_000)
    return install_aging(make_page_table(num_pages).generator, credit=credit, share=share, clock=clock or Clock())


def prompt_pages(table: Any, *names: bytes) -> list[Any]:
    """Claims a chain of full pages, computes it and releases it."""
    hashes = [name.rjust(16, b"#") for name in names]
    pages = table.allocate_pages(hashes, 0, None, set(hashes))[0]
    for page, previous in zip(pages, [None, *hashes], strict=False):
        page.prev_hash = previous
        page.kv_position = 256
        page.can_revert = False
    table.deallocate_pages(pages)
    return list(pages)


def is_cached(table: Any, name: bytes) -> bool:
    return table.get_live_page(name.rjust(16, b"#")) is not None


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_that_of_a_full_rebuild_after_every_step(seed: int) -> None:
    table = aging_table(share=0.0)
    run = PageTableRun(table, seed)
    seen: set[VictimClass] = set()
    for _ in range(3000):
        run.step()
        rebuilt = rebuilt_order(table)
        assert_is_up_to_date(table, rebuilt)
        protected = {page.phash for page in table.all_pages[:3]}
        table.leaf_order.begin(protected)
        rebuilt.begin(protected)
        victim, expected = table.leaf_order.next_victim(), rebuilt.next_victim()
        assert (victim and (victim[0].number, victim[1])) == (expected and (expected[0].number, expected[1]))
        if victim is not None:
            seen.add(victim[1])
    assert seen >= {VictimClass.EMPTY, VictimClass.ORPHAN, VictimClass.RECENCY}


def test_the_table_is_valid_after_ten_thousand_operations() -> None:
    table = aging_table(share=0.3)
    run = PageTableRun(table, seed=7)
    for step in range(10_000):
        run.step()
        if step % 100 == 0:
            table.validate_pagetable(run.jobs)
    table.validate_pagetable(run.jobs)
    assert_is_up_to_date(table, rebuilt_order(table))
    classes = table.evictions_by_class
    assert classes[VictimClass.RECENCY] > 50
    assert classes[VictimClass.CREDIT] > 50
    assert sum(classes.values()) == table.metrics["evictions"]


def test_a_head_that_two_prompts_share_outlives_a_flood() -> None:
    table = aging_table(share=0.3)
    prompt_pages(table, b"head", b"a")
    prompt_pages(table, b"head", b"b")
    for number in range(2 * NUM_PAGES):
        prompt_pages(table, b"flood-%d" % number)
    assert is_cached(table, b"head")
    assert is_cached(table, b"a") != is_cached(table, b"b"), "one page after the head may hold its last tokens"


def test_without_a_share_the_flood_takes_it() -> None:
    table = aging_table(share=0.0)
    prompt_pages(table, b"head", b"a")
    prompt_pages(table, b"head", b"b")
    for number in range(2 * NUM_PAGES):
        prompt_pages(table, b"flood-%d" % number)
    assert not is_cached(table, b"head")


def test_defragmentation_keeps_credits_with_their_pages() -> None:
    table = aging_table(share=0.3)
    for number in range(8):
        prompt_pages(table, b"odd-%d" % number, b"odder-%d" % number)
    prompt_pages(table, b"head", b"a")
    prompt_pages(table, b"head", b"b")
    for number in range(8):
        prompt_pages(table, b"odd-%d" % number, b"%d" % number, b"more-%d" % number)
    head = table.get_live_page(b"head".rjust(16, b"#"))
    index, weight = head.page_index, table.credit.weight(head.phash, 0.0)
    table.last_defrag_serial = -(10**9)
    table.defrag()
    assert head.page_index != index, "nothing moved"
    assert table.credit.weight(head.phash, 0.0) == weight == 1.0
    for number in range(2 * NUM_PAGES):
        prompt_pages(table, b"flood-%d" % number)
    assert is_cached(table, b"head")


def test_a_pinned_page_outlives_a_flood_and_is_pinned_when_it_returns() -> None:
    table = aging_table(share=0.0, num_pages=4)
    table.set_pinned(b"pin".rjust(16, b"#"), True)
    prompt_pages(table, b"pin")
    for number in range(8):
        prompt_pages(table, b"flood-%d" % number)
    assert is_cached(table, b"pin")
    prompt_pages(table, b"w", b"x", b"y", b"z")
    assert not is_cached(table, b"pin"), "a request that needs the whole cache gets it"
    prompt_pages(table, b"pin")
    prompt_pages(table, b"x2", b"y2", b"z2")
    assert is_cached(table, b"pin")
    table.set_pinned(b"pin".rjust(16, b"#"), False)
    prompt_pages(table, b"x3", b"y3", b"z3")
    assert not is_cached(table, b"pin")


def test_an_eviction_is_regretted_when_the_page_is_asked_for_within_a_minute() -> None:
    clock = Clock()
    table = aging_table(share=0.0, num_pages=2, clock=clock)
    prompt_pages(table, b"a")
    prompt_pages(table, b"x", b"y")
    clock.seconds = 59.0
    prompt_pages(table, b"a")
    assert table.regretted_evictions == 1
    prompt_pages(table, b"x2", b"y2")
    clock.seconds = 120.0
    prompt_pages(table, b"a")
    assert table.regretted_evictions == 1


def test_a_table_that_is_reset_starts_over() -> None:
    table = aging_table(share=0.3)
    prompt_pages(table, b"a", b"b")
    table.reset_page_table()
    prompt_pages(table, b"c")
    assert_is_up_to_date(table, rebuilt_order(table))


def test_an_engine_with_another_page_table_is_refused() -> None:
    table = make_page_table(2)
    table.__class__ = type("OtherPageTable", (PageTable,), {})
    with pytest.raises(LoadFailed, match="OtherPageTable"):
        install_aging(table.generator, credit=AgingCredit.__new__(AgingCredit), share=0.0, clock=Clock())


def test_a_table_that_it_is_not_installed_on_is_stock_to_the_page() -> None:
    aging_table(share=0.3)
    table = make_page_table(2)
    assert type(table) is PageTable
    assert all(type(page) is CachePage for page in table.all_pages)
