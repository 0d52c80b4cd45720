"""Mooncake's request traces (kvcache-ai/Mooncake, FAST'25)."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path

from trace_study.workload import PAGE_TOKENS, PrefixTree, Request, Workload, full_pages

BLOCK_TOKENS = 512
FILE_NAMES = {"conversation": "conversation_trace.jsonl", "synthetic": "synthetic_trace.jsonl"}


def load(folder: Path, trace: str) -> Workload:
    """`trace` is a key of `FILE_NAMES`.

    The traces name no sessions: a request goes on with the conversation of the latest earlier request whose last full
    page it contains past the first block, and starts one where there is none.
    """
    tree = PrefixTree()
    requests: list[Request] = []
    conversation_of: dict[int, int] = {}  # last page of a request -> its conversation
    conversations = 0
    with (folder / FILE_NAMES[trace]).open() as lines:
        for line in lines:
            entry = json.loads(line)
            chain = tree.chain(_pages(entry["input_length"], entry["hash_ids"]))
            session = next((conversation_of[page] for page in chain[::-1].tolist() if page in conversation_of), None)
            if first := session is None:
                session, conversations = conversations, conversations + 1
            if len(chain) > BLOCK_TOKENS // PAGE_TOKENS:
                conversation_of[int(chain[-1])] = session
            requests.append(
                Request(
                    seconds=entry["timestamp"] / 1000,
                    prompt_tokens=entry["input_length"],
                    chain=chain,
                    session=session,
                    first=first,
                )
            )
    return Workload.of(f"Mooncake {trace}", requests, tree)


def _pages(prompt_tokens: int, block_ids: list[int]) -> list[Hashable]:
    per_block = BLOCK_TOKENS // PAGE_TOKENS
    return [(block_ids[page // per_block], page % per_block) for page in range(full_pages(prompt_tokens))]
