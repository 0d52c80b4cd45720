"""Claude Code sessions (callanjfox/kv-cache-tester), replayed as users who each work through one session at a time."""

from __future__ import annotations

import heapq
import json
import lzma
import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_study.workload import PAGE_TOKENS, PrefixTree, Request, Workload, full_pages

FILE_NAME = "claude_code_sessions.jsonl.xz"
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


def load_sessions(folder: Path) -> list[list[Turn]]:
    """Sessions whose requests all have at most `MAX_PROMPT_TOKENS`, each a list of turns by time.

    Block ids mean something within one session only. Two sessions are taken to share their head, tools and then system
    prompt, where the lengths of both are equal: an assumption, the data cannot tell.
    """
    sessions = []
    with lzma.open(folder / FILE_NAME) as lines:
        for number, line in enumerate(lines):
            session = json.loads(line)
            if _longest_prompt(session["requests"]) <= MAX_PROMPT_TOKENS:
                turns = sorted(_turns(session, number, session["block_size"], 0.0), key=lambda turn: turn.seconds)
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
        )
        for seconds, session, _, turn in sorted(timed, key=lambda entry: entry[:3])
    ]
    return Workload.of(f"Claude Code, {users} users", requests, tree)


def _longest_prompt(requests: list[dict[str, Any]]) -> int:
    return max(_longest_prompt(r["requests"]) if "requests" in r else r["in"] for r in requests)


def _turns(conversation: dict[str, Any], session: int, block_tokens: int, start: float) -> Iterator[Turn]:
    """The turns of a conversation and of the sub-agents inside it; a sub-agent's times count from its own start."""
    head: list[int] | None = None
    tokens = (conversation.get("tool_tokens") or 0, conversation.get("system_tokens") or 0)
    for request in conversation["requests"]:
        seconds = start + request["t"]
        if "requests" in request:
            yield from _turns(request, session, block_tokens, seconds)
            continue
        ids = request["hash_ids"]
        if first := head is None:
            head = ids[: sum(tokens) // block_tokens]
        yield Turn(seconds, request["in"], _pages(request, session, block_tokens, head or [], tokens), first)


def _pages(
    request: dict[str, Any], session: int, block_tokens: int, head: list[int], head_tokens: tuple[int, int]
) -> list[Hashable]:
    ids, step = request["hash_ids"], PAGE_TOKENS // block_tokens
    pages: list[Hashable] = []
    for start in range(0, min(full_pages(request["in"]), len(ids) // step) * step, step):
        blocks = ids[start : start + step]
        shared = start + step <= len(head) and blocks == head[start : start + step]
        pages.append(head_tokens if shared else (session, *blocks))
    return pages


def _without_long_gaps(turns: list[Turn]) -> list[Turn]:
    cut, previous, kept = 0.0, turns[0].seconds, []
    for turn in turns:
        cut += max(0.0, turn.seconds - previous - MAX_GAP_SECONDS)
        previous = turn.seconds
        kept.append(Turn(turn.seconds - cut - turns[0].seconds, turn.prompt_tokens, turn.pages, turn.first))
    return kept
