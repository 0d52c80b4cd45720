"""Requests as chains of cache pages: what every policy is replayed on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

PAGE_TOKENS = 256
"""exllamav3's page."""

NOT_COUNTED = -1
"""Session of requests that are replayed and are part of no figure."""


def full_pages(prompt_tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """Pages of a prompt that the cache can find again: the engine always computes the last token itself."""
    return max(0, (prompt_tokens - 1) // page_tokens)


class PrefixTree:
    """Numbers the pages: two requests get the same number for a page where all their pages up to it are the same."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self._children: dict[tuple[int, Hashable], int] = {}

    def chain(self, contents: Sequence[Hashable]) -> NDArray[np.int32]:
        """The page numbers of a prompt, from what each page holds."""
        node, chain = -1, np.empty(len(contents), np.int32)
        for index, content in enumerate(contents):
            key = (node, content)
            child = self._children.get(key)
            if child is None:
                child = self._children[key] = len(self.parents)
                self.parents.append(node)
            chain[index] = node = child
        return chain


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    seconds: float
    prompt_tokens: int
    chain: NDArray[np.int32]
    """Its full pages, first to last."""
    session: int
    """What the bootstrap draws: requests of one session stay together."""
    first: bool
    """Starts a conversation."""
    head_pages: int = 0
    """Of its pages, the first ones that other sessions may share."""
    answer_tokens: int = 0


@dataclass(frozen=True)
class Workload:
    """Requests in the order in which they are replayed."""

    name: str
    requests: list[Request]
    parents: NDArray[np.int32]
    """By page: the page before it, -1 for a first page."""

    @classmethod
    def of(cls, name: str, requests: list[Request], tree: PrefixTree) -> Workload:
        return cls(name, requests, np.array(tree.parents, np.int32))

    @property
    def num_pages(self) -> int:
        """All the pages there are, unique ones."""
        return len(self.parents)

    @cached_property
    def roots(self) -> NDArray[np.int32]:
        """By page: the first page of its chains. A page is numbered after the one before it."""
        roots = np.arange(self.num_pages, dtype=np.int32)
        for page, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                roots[page] = roots[parent]
        return roots

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        counted: NDArray[np.bool_] = self.sessions != NOT_COUNTED
        return counted

    @cached_property
    def prompt_tokens(self) -> NDArray[np.int64]:
        return np.array([request.prompt_tokens for request in self.requests], np.int64)

    @cached_property
    def sessions(self) -> NDArray[np.int64]:
        return np.array([request.session for request in self.requests], np.int64)

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        return np.array([request.first for request in self.requests], np.bool_)

    @cached_property
    def unbounded_hits(self) -> NDArray[np.int64]:
        """By request: tokens that a cache without limit would serve."""
        seen = np.zeros(self.num_pages, np.bool_)
        hits = np.zeros(len(self.requests), np.int64)
        for index, request in enumerate(self.requests):
            hits[index] = int(seen[request.chain].sum()) * PAGE_TOKENS
            seen[request.chain] = True
        return hits
