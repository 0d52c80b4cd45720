"""Victims of small tables, and of a random one next to an order computed from nothing."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from exllamav3_adapters.policies.leaf_order import LeafOrder, VictimClass
from exllamav3_adapters.policies.page_forest import PageRecord


class Table:
    """A cache of named pages: `chain` fills free ones, in the order of their claims."""

    def __init__(self, size: int, credited_pages: int = 0) -> None:
        self.credits: dict[bytes, float] = {}
        records = [PageRecord(number, b"free-%d" % number, serial=number) for number in range(size)]
        self.order = LeafOrder(records, credited_pages=credited_pages, log_credit=self.credits.get)
        self._number_of: dict[bytes, int] = {}
        self._serial = size

    def chain(self, names: str) -> None:
        """One page a letter, each after the one before it; those in the cache already are claimed again."""
        parent: bytes | None = None
        numbers = []
        for name in (letter.encode() for letter in names):
            self._serial += 1
            if name not in self._number_of:
                self._number_of[name] = self.take()
            number = self._number_of[name]
            self.order.set_referenced(number, True)
            self.order.rename(number, name)
            self.order.set_serial(number, self._serial)
            self.order.reparent(number, parent)
            self.order.set_empty(number, False)
            numbers.append(number)
            parent = name
        for number in numbers:
            self.order.set_referenced(number, False)

    def take(self, protected: Collection[bytes] = ()) -> int:
        self.order.begin(protected)
        victim = self.order.next_victim()
        assert victim is not None
        self._number_of.pop(victim[0].phash, None)
        return victim[0].number

    def eat(self, count: int, protected: Collection[bytes] = ()) -> str:
        """Names of the next victims, each emptied and kept referenced."""
        names = []
        for _ in range(count):
            self.order.begin(protected)
            victim = self.order.next_victim()
            assert victim is not None
            names.append(victim[0].phash.decode())
            self.drop(victim[0].phash.decode())
        return "".join(names)

    def drop(self, name: str) -> None:
        number = self[name].number
        self._number_of.pop(name.encode(), None)
        self.order.set_referenced(number, True)
        self.order.rename(number, b"gone-%d" % number)
        self.order.reparent(number, None)
        self.order.set_empty(number, True)

    def victim_class(self) -> VictimClass:
        self.order.begin()
        victim = self.order.next_victim()
        assert victim is not None
        return victim[1]

    def __getitem__(self, name: str) -> PageRecord:
        return self.order[self._number_of[name.encode()]]


def test_empty_pages_go_first_oldest_first() -> None:
    table = Table(4)
    table.chain("ab")
    table.order.begin()
    victim = table.order.next_victim()
    assert victim is not None
    assert (victim[0].number, victim[1]) == (2, VictimClass.EMPTY)


def test_a_chain_is_eaten_from_its_end() -> None:
    table = Table(3)
    table.chain("abc")
    assert table.eat(3) == "cba"


def test_the_leaf_claimed_longest_ago_goes_first_whatever_its_root() -> None:
    """What stock `tree` does not do: it keeps a dead branch as long as its root is hot."""
    table = Table(6)
    table.chain("hab")
    table.chain("xy")
    table.chain("hc")
    assert table.eat(6) == "bayxch"


def test_orphans_go_before_leaves_and_from_their_ends() -> None:
    table = Table(5)
    table.chain("xy")
    table.chain("abc")
    table.drop("a")
    assert table.victim_class() is VictimClass.ORPHAN
    assert table.eat(4) == "cbyx"


def test_orphans_are_rooted_again_when_the_missing_page_returns() -> None:
    table = Table(6)
    table.chain("abc")
    table.chain("xy")
    table.drop("a")
    table.chain("abc")
    assert table.eat(2) == "yx"


def test_a_page_in_use_and_the_pages_before_it_are_spared() -> None:
    table = Table(4)
    table.chain("abc")
    table.chain("x")
    table.order.set_referenced(table["c"].number, True)
    assert table.eat(1) == "x"
    assert table.victim_class() is VictimClass.LAST_RESORT


def test_what_the_allocation_needs_is_spared_and_is_an_ordinary_page_afterwards() -> None:
    table = Table(4)
    table.chain("ab")
    table.chain("xy")
    assert table.eat(2, protected={b"a", b"b"}) == "yx"
    assert table.eat(2) == "ba"


def test_protected_pages_go_last_of_all() -> None:
    table = Table(3)
    table.chain("ab")
    table.chain("x")
    table.order.set_pinned(table["x"].number, True)
    assert table.eat(3, protected={b"a", b"b"}) == "xba"


def test_a_pinned_chain_is_spared_and_eaten_from_its_end_in_the_last_resort() -> None:
    table = Table(4)
    table.chain("pq")
    table.chain("ab")
    for name in "pq":
        table.order.set_pinned(table[name].number, True)
    assert table.eat(4) == "baqp"


def test_an_unpinned_page_is_an_ordinary_page() -> None:
    table = Table(3)
    table.chain("p")
    table.chain("ab")
    table.order.set_pinned(table["p"].number, True)
    table.order.set_pinned(table["p"].number, False)
    assert table.eat(1) == "p"


def test_a_page_with_other_contents_is_not_pinned() -> None:
    table = Table(2)
    table.chain("p")
    table.order.set_pinned(table["p"].number, True)
    table.order.rename(table["p"].number, b"q")
    assert not table.order[1].pinned
    assert not table.order[0].pinned


def test_credited_pages_outlive_their_recency_in_their_share() -> None:
    table = Table(6, credited_pages=2)
    table.credits |= {b"h": 5.0, b"i": 5.0}
    table.chain("hi")
    table.chain("ab")
    table.chain("xy")
    assert table.eat(4) == "bayx"
    assert table.victim_class() is VictimClass.CREDIT


def test_one_page_after_a_credited_one_is_kept_with_it() -> None:
    table = Table(6, credited_pages=2)
    table.credits |= {b"h": 5.0}
    table.chain("ha")
    table.chain("hb")
    table.chain("hc")
    table.chain("xy")
    assert table.eat(4) == "bcyx"
    assert table.eat(2) == "ah"


def test_of_credited_pages_the_one_of_least_credit_goes() -> None:
    table = Table(4, credited_pages=2)
    table.credits |= {b"a": 2.0, b"b": 1.0, b"c": 3.0}
    table.chain("b")
    table.chain("a")
    table.chain("c")
    table.chain("x")
    assert table.eat(1) == "b"
    assert table.eat(1) == "x"


def test_no_more_than_the_share_is_kept_for_credit() -> None:
    table = Table(4, credited_pages=1)
    table.credits |= {b"a": 1.0, b"b": 1.0}
    table.chain("a")
    table.chain("b")
    table.chain("xy")
    assert table.eat(1) == "b"
    assert table.order.num_parked == 1


def test_a_page_is_kept_for_those_after_it_that_are() -> None:
    table = Table(4, credited_pages=1)
    table.credits |= {b"b": 1.0}
    table.chain("ab")
    table.chain("xy")
    assert table.eat(1) == "b", "to keep b would take a too, and there is room for one"
    assert table.eat(1) == "a"


def test_a_credited_page_that_is_claimed_again_leaves_the_share() -> None:
    table = Table(4, credited_pages=1)
    table.credits |= {b"a": 1.0}
    table.chain("a")
    table.chain("xy")
    table.chain("z")
    table.eat(1)
    assert table.order.num_parked == 1
    table.chain("a")
    assert table.order.num_parked == 0


def test_a_share_as_large_as_the_cache_orders_by_credit_first() -> None:
    table = Table(5, credited_pages=5)
    table.credits |= {b"a": 3.0, b"c": 1.0, b"d": 2.0}
    for name in "abcde":
        table.chain(name)
    assert table.eat(5) == "becda"


def test_looking_twice_gives_the_same_page() -> None:
    table = Table(4, credited_pages=1)
    table.credits |= {b"a": 1.0, b"b": 2.0, b"c": 3.0}
    for name in "abcx":
        table.chain(name)
    table.order.begin()
    assert table.order.next_victim() == table.order.next_victim()


def test_nothing_is_left_where_every_page_is_in_use() -> None:
    table = Table(1)
    table.chain("a")
    table.order.set_referenced(table["a"].number, True)
    table.order.begin()
    assert table.order.next_victim() is None


def computed_victim(
    records: list[PageRecord], protected: set[bytes], parked: set[int]
) -> tuple[VictimClass, int] | None:
    """What has to go, from the pages alone; None: a last resort, or a question of credit."""
    live = {record.phash: record for record in records}

    def rooted(record: PageRecord) -> bool:
        return record.parent is None or (record.parent in live and rooted(live[record.parent]))

    free = [r for r in records if not r.referenced and r.phash not in protected]
    if empties := [r for r in free if r.empty]:
        return VictimClass.EMPTY, min(empties, key=lambda r: r.serial).number
    blocked = {r.parent for r in records if r.number not in parked}
    leaves = [r for r in free if r.number not in parked and not r.pinned and r.phash not in blocked]
    if not leaves:
        return None
    first = min(leaves, key=lambda r: (rooted(r), r.serial))
    return (VictimClass.RECENCY if rooted(first) else VictimClass.ORPHAN), first.number


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("credited_pages", [0, 3])
def test_a_long_random_run_agrees_with_an_order_computed_from_nothing(seed: int, credited_pages: int) -> None:
    draw = random.Random(seed)
    size, names = 12, [b"%d" % n for n in range(20)]
    log_credits = {name: draw.random() for name in names[:6]} if credited_pages else {}
    records = [PageRecord(number, b"free-%d" % number, serial=number) for number in range(size)]
    order = LeafOrder(records, credited_pages=credited_pages, log_credit=log_credits.get)
    seen: set[VictimClass] = set()
    for step in range(2000):
        number = draw.randrange(size)
        taken = {record.phash for record in records}
        match draw.randrange(6):
            case 0:
                order.set_referenced(number, draw.random() < 0.4)
            case 1:
                # A page comes after one of a smaller name, so that there are no cycles.
                name = draw.choice([name for name in names if name not in taken])
                order.reparent(number, None)
                order.rename(number, name)
            case 2:
                name = records[number].phash
                smaller = names[: names.index(name)] if name in names else []
                order.reparent(number, draw.choice([None, *smaller]))
            case 3:
                order.set_empty(number, draw.random() < 0.1)
            case 4:
                order.set_serial(number, size + step)
            case _:
                order.set_pinned(number, draw.random() < 0.2)
        protected = {record.phash for record in draw.sample(records, 2)}
        order.begin(protected)
        victim = order.next_victim()
        assert order.num_parked == sum(record.parked for record in records)
        expected = computed_victim(records, protected, {record.number for record in records if record.parked})
        if victim is None:
            assert all(record.referenced for record in records)
            continue
        seen.add(victim[1])
        assert not victim[0].referenced
        if victim[1] is VictimClass.LAST_RESORT:
            assert expected is None
        elif victim[1] is VictimClass.CREDIT:
            assert victim[0].parked
            assert victim[0].phash not in protected
            assert not any(record.parent == victim[0].phash for record in records)
        else:
            assert expected == (victim[1], victim[0].number)
    assert seen >= {VictimClass.EMPTY, VictimClass.ORPHAN, VictimClass.RECENCY, VictimClass.LAST_RESORT}
