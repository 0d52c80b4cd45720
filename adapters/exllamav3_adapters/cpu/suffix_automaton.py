"""The suffix automaton behind n-gram drafts (`sam.cpp` of the extension)."""

from __future__ import annotations

import torch

NO_OCCURRENCE = (-1, -1)


class BC_SAM:  # noqa: N801 - the extension's own name
    """Finds, for the end of a growing token sequence, the longest earlier occurrence.

    States are those of the minimal automaton of all substrings (Blumer et al. 1985); each keeps where its
    substrings ended first. Amortised constant time for each token.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self, reserve_tokens: int = 0) -> None:
        """Forgets every token. `reserve_tokens` is a hint of the compiled class and has no effect."""
        del reserve_tokens
        self._edges: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._max_length = [0]
        self._first_end = [-1]
        self._last = self._position = 0
        self._match_state = self._match_length = 0

    def length(self) -> int:
        """How many tokens were accepted."""
        return self._position

    def accept(self, token: int) -> tuple[int, int]:
        """Appends a token; begin and end (exclusive) of the earlier occurrence, (-1, -1) where there is none."""
        self._advance_match(token)
        occurrence = self._occurrence()
        self._extend(token)
        return occurrence

    def accept_tensor(self, tokens: torch.Tensor) -> tuple[int, int]:
        """Appends what `tokens` (1, n), int64, has beyond the accepted sequence. A shorter one starts again."""
        ids = tokens.reshape(-1)
        if ids.numel() < self._position:
            self.reset()
        occurrence = NO_OCCURRENCE
        for token in ids[self._position :].tolist():
            occurrence = self.accept(token)
        return occurrence

    def _occurrence(self) -> tuple[int, int]:
        if not self._match_length:
            return NO_OCCURRENCE
        end = self._first_end[self._match_state] + 1
        return end - self._match_length, end

    def _advance_match(self, token: int) -> None:
        state, length = self._match_state, self._match_length
        while state and token not in self._edges[state]:
            state = self._link[state]
            length = min(length, self._max_length[state])
        target = self._edges[state].get(token)
        self._match_state, self._match_length = (0, 0) if target is None else (target, length + 1)

    def _new_state(self, max_length: int, link: int, first_end: int, edges: dict[int, int]) -> int:
        self._max_length.append(max_length)
        self._link.append(link)
        self._first_end.append(first_end)
        self._edges.append(edges)
        return len(self._link) - 1

    def _extend(self, token: int) -> None:
        current = self._new_state(self._max_length[self._last] + 1, 0, self._position, {})
        state = self._last
        while state != -1 and token not in self._edges[state]:
            self._edges[state][token] = current
            state = self._link[state]
        if state != -1:
            self._link[current] = self._split(state, token)
        self._last = current
        self._position += 1

    def _split(self, state: int, token: int) -> int:
        """The state for the longest suffix that occurred before, cloned where longer substrings share it."""
        target = self._edges[state][token]
        if self._max_length[state] + 1 == self._max_length[target]:
            return target
        clone = self._new_state(
            self._max_length[state] + 1, self._link[target], self._first_end[target], dict(self._edges[target])
        )
        while state != -1 and self._edges[state].get(token) == target:
            self._edges[state][token] = clone
            state = self._link[state]
        self._link[target] = clone
        return clone
