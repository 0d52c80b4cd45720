"""What the traces become, on the traces themselves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from trace_study import claude_code, mooncake
from trace_study.claude_code import MAX_GAP_SECONDS, MAX_PROMPT_TOKENS, Turn
from trace_study.estimates import SessionBootstrap
from trace_study.leaf_first import LeafFirst, Recency
from trace_study.replay import replay
from trace_study.scan_overlay import DOCUMENT_TOKENS, INTERVAL_SECONDS, with_scans
from trace_study.workload import NOT_COUNTED, PAGE_TOKENS, Workload, full_pages


@pytest.fixture(scope="module")
def sessions(traces: Path) -> list[list[Turn]]:
    return claude_code.load_sessions(traces)


@pytest.fixture(scope="module")
def users(sessions: list[list[Turn]]) -> Workload:
    return claude_code.as_users(sessions, 16)


def test_the_last_token_of_a_prompt_is_on_no_cached_page() -> None:
    assert [full_pages(tokens) for tokens in (0, 1, 256, 257, 512, 513)] == [0, 0, 0, 1, 1, 2]


def test_sessions_with_longer_prompts_are_left_out(sessions: list[list[Turn]]) -> None:
    assert len(sessions) == 99
    assert max(turn.prompt_tokens for turns in sessions for turn in turns) <= MAX_PROMPT_TOKENS


def test_no_pause_in_a_session_is_longer_than_an_hour(sessions: list[list[Turn]]) -> None:
    pauses = [later.seconds - turn.seconds for turns in sessions for turn, later in pairwise(turns)]
    assert min(pauses) >= 0
    assert max(pauses) == pytest.approx(MAX_GAP_SECONDS)


def test_sessions_share_pages_of_their_head_and_no_others(users: Workload) -> None:
    sessions_of: dict[int, set[int]] = {}
    for request in users.requests:
        for page in request.chain.tolist():
            sessions_of.setdefault(page, set()).add(request.session)
    shared = [page for page, of in sessions_of.items() if len(of) > 1]
    assert shared
    depth = {int(page): place for request in users.requests for place, page in enumerate(request.chain)}
    assert max(depth[page] for page in shared) * PAGE_TOKENS < 25_000, "longer than any head"


def test_users_work_through_every_session_once_and_by_time(sessions: list[list[Turn]], users: Workload) -> None:
    assert len(users.requests) == sum(len(turns) for turns in sessions)
    assert len(set(users.sessions.tolist())) == len(sessions)
    seconds = [request.seconds for request in users.requests]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("trace", "percent"), [("conversation", 37.35), ("synthetic", 65.08)])
def test_a_cache_without_limit_serves_what_is_known_of_mooncake(traces: Path, trace: str, percent: float) -> None:
    workload = mooncake.load(traces, trace)
    served = workload.unbounded_hits.sum() / workload.prompt_tokens.sum()
    assert round(100 * served, 2) == percent


def test_scans_share_nothing_and_are_not_counted(users: Workload) -> None:
    scanned = with_scans(users)
    scans = [request for request in scanned.requests if request.session == NOT_COUNTED]
    assert len(scans) == int(users.requests[-1].seconds / INTERVAL_SECONDS)
    assert {len(scan.chain) for scan in scans} == {full_pages(DOCUMENT_TOKENS)}
    assert scanned.counted.sum() == len(users.requests)
    assert scanned.unbounded_hits[scanned.counted].sum() == users.unbounded_hits.sum()


def test_an_interval_holds_its_rate_and_a_policy_differs_from_itself_by_nothing(users: Workload) -> None:
    hits = replay(users, 8192, LeafFirst(users, Recency(users)))
    bootstrap = SessionBootstrap(users)
    rate = bootstrap.token_hit_rate(hits)
    assert rate.low < rate.value < rate.high
    assert rate.value == pytest.approx(100 * hits.sum() * PAGE_TOKENS / users.prompt_tokens.sum())
    difference = bootstrap.token_hit_difference(hits, hits)
    assert (difference.low, difference.value, difference.high) == (0, 0, 0)


def test_first_requests_are_rated_by_what_could_be_served(users: Workload) -> None:
    bootstrap = SessionBootstrap(users)
    unbounded = users.unbounded_hits // PAGE_TOKENS
    assert bootstrap.first_request_hit_rate(unbounded).value == 100.0
    assert bootstrap.first_request_hit_rate(np.zeros_like(unbounded)).value == 0.0
