"""Requests as chains of the places where an engine checkpoints recurrent state."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import Path

import numpy as np
from trace_study import claude_code
from trace_study.claude_code import BLOCK_TOKENS
from trace_study.workload import Workload

Place = Hashable
"""Names all the tokens of a chain up to there."""


class Placement(Flag):
    """Where checkpoints are made."""

    HEAD_ENDS = auto()
    PROMPT_ENDS = auto()
    ANSWER_ENDS = auto()


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: int
    path: list[Place]
    """Places inside it at which a checkpoint may be, first to last."""
    made: list[Place]
    """Places at which it leaves one, first to last."""


@dataclass(frozen=True)
class Prompts:
    """A workload, seen by the places of its checkpoints. Positions are known to a block of 64 tokens, rounded down."""

    workload: Workload
    prompts: list[Prompt]
    positions: dict[Place, int]
    """In tokens."""


def load_users(folder: Path, users: int) -> Workload:
    """In pages of one block, so that the ends of prompts can be told from one another."""
    return claude_code.as_users(claude_code.load_sessions(folder, BLOCK_TOKENS), users)


def prompts_of(workload: Workload, placement: Placement) -> Prompts:
    made = _made(workload, placement)
    may_be = np.zeros(workload.num_pages, np.bool_)
    may_be[[place for places in made for place, _ in places if isinstance(place, int)]] = True
    positions = {place: position for places in made for place, position in places}
    prompts = [
        Prompt(
            tokens=request.prompt_tokens,
            path=request.chain[may_be[request.chain]].tolist(),
            made=[place for place, _ in places],
        )
        for request, places in zip(workload.requests, made, strict=True)
    ]
    return Prompts(workload, prompts, positions)


def _made(workload: Workload, placement: Placement) -> list[list[tuple[Place, int]]]:
    """By request: places of the checkpoints that it leaves, and their positions."""
    continuations = _continuations(workload)
    made = []
    for index, request in enumerate(workload.requests):
        chain, places = request.chain, list[tuple[Place, int]]()
        if Placement.HEAD_ENDS in placement and request.head_pages:
            places.append((int(chain[request.head_pages - 1]), request.head_pages * BLOCK_TOKENS))
        if Placement.PROMPT_ENDS in placement and len(chain):
            places.append((int(chain[-1]), len(chain) * BLOCK_TOKENS))
        if Placement.ANSWER_ENDS in placement and (blocks := _blocks_with_answer(workload, index)) > len(chain):
            places.append((continuations.get(index, ("lost", index)), blocks * BLOCK_TOKENS))
        made.append(places)
    return made


def _continuations(workload: Workload) -> dict[int, int]:
    """By request: the page in which its answer ends, in the first later prompt that has room for it after the request's
    own. The data does not say what an answer holds: this takes it for a part of that prompt."""
    found: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}  # requests by their last page
    is_waited_at = np.zeros(workload.num_pages, np.bool_)
    for index, request in enumerate(workload.requests):
        for page in request.chain[is_waited_at[request.chain]].tolist():
            for earlier in waiting[page]:
                if (blocks := _blocks_with_answer(workload, earlier)) <= len(request.chain):
                    found[earlier] = int(request.chain[blocks - 1])
            waiting[page] = [earlier for earlier in waiting[page] if earlier not in found]
            is_waited_at[page] = bool(waiting[page])
        if len(request.chain):
            waiting.setdefault(int(request.chain[-1]), []).append(index)
            is_waited_at[request.chain[-1]] = True
    return found


def _blocks_with_answer(workload: Workload, index: int) -> int:
    request = workload.requests[index]
    return (request.prompt_tokens + request.answer_tokens) // BLOCK_TOKENS
