"""Occurrences found by the automaton, against a search by hand."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from exllamav3_adapters.cpu.suffix_automaton import BC_SAM

tokens = st.lists(st.integers(0, 2), max_size=40)


def longest_earlier_occurrence(ids: list[int]) -> tuple[int, int]:
    for length in range(len(ids) - 1, 0, -1):
        suffix = ids[len(ids) - length :]
        for begin in range(len(ids) - length):
            if ids[begin : begin + length] == suffix:
                return begin, begin + length
    return -1, -1


@given(tokens)
def test_each_token_finds_the_first_place_of_its_longest_suffix(ids: list[int]) -> None:
    automaton = BC_SAM()
    for count, token in enumerate(ids, start=1):
        assert automaton.accept(token) == longest_earlier_occurrence(ids[:count])
    assert automaton.length() == len(ids)


@given(tokens, tokens)
def test_a_sequence_that_was_cut_is_read_again(ids: list[int], more: list[int]) -> None:
    automaton = BC_SAM()
    automaton.accept_tensor(torch.tensor([ids], dtype=torch.long))
    shorter = ids[: len(ids) // 2]
    if len(shorter) < len(ids):
        automaton.accept_tensor(torch.tensor([shorter], dtype=torch.long))
    grown = [*shorter, *more] if len(shorter) < len(ids) else [*ids, *more]
    found = automaton.accept_tensor(torch.tensor([grown], dtype=torch.long))
    if more:
        assert found == longest_earlier_occurrence(grown)
