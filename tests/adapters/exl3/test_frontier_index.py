"""Frontiers are found by the page that they follow, longest first, and leave nothing behind."""

from exllamav3_adapters.exl3.frontier_index import Frontier, FrontierIndex

AFTER_ROOT = Frontier(b"a", None, 3)
SHORT, LONG, TWIN = Frontier(b"b", b"page", 10), Frontier(b"c", b"page", 200), Frontier(b"d", b"page", 10)


def index_of(*frontiers: Frontier) -> FrontierIndex:
    index = FrontierIndex()
    for frontier in frontiers:
        index.add(frontier)
    return index


def test_lengths_come_longest_first_and_once() -> None:
    index = index_of(AFTER_ROOT, SHORT, LONG, TWIN)
    assert index.lengths(b"page") == [200, 10]
    assert index.lengths(None) == [3]
    assert index.lengths(b"another") == []


def test_adding_twice_is_adding_once() -> None:
    index = index_of(SHORT, SHORT)
    index.remove(SHORT.key)
    assert (len(index), index.lengths(b"page")) == (0, [])


def test_a_length_goes_with_its_last_frontier() -> None:
    index = index_of(SHORT, LONG, TWIN)
    index.remove(SHORT.key)
    assert index.lengths(b"page") == [200, 10]
    index.remove(TWIN.key)
    assert index.lengths(b"page") == [200]
    assert SHORT.key not in index
    assert list(index) == [LONG]


def test_removing_what_is_not_there_is_no_error() -> None:
    index = index_of(LONG)
    index.remove(b"never seen")
    assert list(index) == [LONG]
