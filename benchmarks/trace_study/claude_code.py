"""Claude Code sessions (callanjfox/kv-cache-tester), replayed as users who each work through one session at a time."""

from __future__ import annotations

import heapq
import json
import lzma
import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_study.workload import PAGE_TOKENS, PrefixTree, Request, Workload, full_pages

FILE_NAME = "claude_code_sessions.jsonl.xz"
BLOCK_TOKENS = 64
"""Of the data's own ids."""
MAX_PROMPT_TOKENS = 210_000
MAX_GAP_SECONDS = 3600.0
"""Longest pause that is replayed within a session."""
SESSION_GAP_SECONDS = 300.0
"""Between two sessions of a user."""


@dataclass(frozen=True, slots=True)
class Turn:
    seconds: float
    """Since the session's first request."""
    prompt_tokens: int
    pages: list[Hashable]
    """What each full page holds."""
    first: bool
    head_pages: int
    """Of these, the first ones that other sessions may share."""
    answer_tokens: int


def load_sessions(folder: Path, page_tokens: int = PAGE_TOKENS) -> list[list[Turn]]:
    """Sessions whose requests all have at most `MAX_PROMPT_TOKENS`, each a list of turns by time.

    `page_tokens`: of what is called a page here, a multiple of the data's blocks of 64 tokens.

    Block ids mean something within one session only. Two sessions are taken to share their head, tools and then system
    prompt, where the lengths of both are equal: an assumption, the data cannot tell.
    """
    sessions = []
    with lzma.open(folder / FILE_NAME) as lines:
        for number, line in enumerate(lines):
            session = json.loads(line)
            if _longest_prompt(session["requests"]) <= MAX_PROMPT_TOKENS:
                turns = sorted(_turns(session, number, page_tokens, 0.0), key=lambda turn: turn.seconds)
                sessions.append(_without_long_gaps(turns))
    return sessions


def as_users(sessions: list[list[Turn]], users: int, seed: int = 1) -> Workload:
    """Each user takes the next session, in an order drawn by `seed`, `SESSION_GAP_SECONDS` after the last one's end."""
    draw = random.Random(seed)
    order = draw.sample(range(len(sessions)), len(sessions))
    free_at = [(draw.uniform(0, SESSION_GAP_SECONDS), user) for user in range(users)]
    heapq.heapify(free_at)
    timed: list[tuple[float, int, int, Turn]] = []
    for session in order:
        start, user = heapq.heappop(free_at)
        turns = sessions[session]
        timed += [(start + turn.seconds, session, index, turn) for index, turn in enumerate(turns)]
        heapq.heappush(free_at, (start + turns[-1].seconds + SESSION_GAP_SECONDS, user))
    tree = PrefixTree()
    requests = [
        Request(
            seconds=seconds,
            prompt_tokens=turn.prompt_tokens,
            chain=tree.chain(turn.pages),
            session=session,
            first=turn.first,
            head_pages=turn.head_pages,
            answer_tokens=turn.answer_tokens,
        )
        for seconds, session, _, turn in sorted(timed, key=lambda entry: entry[:3])
    ]
    return Workload.of(f"Claude Code, {users} users", requests, tree)


def _longest_prompt(requests: list[dict[str, Any]]) -> int:
    return max(_longest_prompt(r["requests"]) if "requests" in r else r["in"] for r in requests)


def _turns(conversation: dict[str, Any], session: int, page_tokens: int, start: float) -> Iterator[Turn]:
    """The turns of a conversation and of the sub-agents inside it; a sub-agent's times count from its own start."""
    head: list[int] | None = None
    tokens = (conversation.get("tool_tokens") or 0, conversation.get("system_tokens") or 0)
    for request in conversation["requests"]:
        seconds = start + request["t"]
        if "requests" in request:
            yield from _turns(request, session, page_tokens, seconds)
            continue
        ids = request["hash_ids"]
        if first := head is None:
            head = ids[: sum(tokens) // BLOCK_TOKENS]
        pages = _pages(ids, session, full_pages(request["in"], page_tokens), page_tokens // BLOCK_TOKENS)
        shared = _num_shared(ids, head or [], page_tokens // BLOCK_TOKENS, len(pages))
        pages[:shared] = [tokens] * shared
        yield Turn(seconds, request["in"], pages, first, shared, request["out"])


def _pages(ids: list[int], session: int, num_full: int, step: int) -> list[Hashable]:
    end = min(num_full, len(ids) // step) * step
    return [(session, *ids[start : start + step]) for start in range(0, end, step)]


def _num_shared(ids: list[int], head: list[int], step: int, num_pages: int) -> int:
    """Leading pages that lie in the head."""
    same = next(
        (place for place, (a, b) in enumerate(zip(ids, head, strict=False)) if a != b), min(len(ids), len(head))
    )
    return min(same // step, num_pages)


def _without_long_gaps(turns: list[Turn]) -> list[Turn]:
    cut, previous, kept = 0.0, turns[0].seconds, []
    for turn in turns:
        cut += max(0.0, turn.seconds - previous - MAX_GAP_SECONDS)
        previous = turn.seconds
        kept.append(replace(turn, seconds=turn.seconds - cut - turns[0].seconds))
    return kept
