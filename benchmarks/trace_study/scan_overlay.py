"""One-off documents over another workload: long prompts that nobody asks for again."""

from __future__ import annotations

import heapq

import numpy as np

from trace_study.workload import NOT_COUNTED, Request, Workload, full_pages

DOCUMENT_TOKENS = 24_000
INTERVAL_SECONDS = 180.0


def with_scans(workload: Workload) -> Workload:
    """A document of `DOCUMENT_TOKENS` every `INTERVAL_SECONDS`. They are replayed and not counted."""
    chain_pages = full_pages(DOCUMENT_TOKENS)
    parents = workload.parents.tolist()
    scans = []
    for number in range(1, int(workload.requests[-1].seconds / INTERVAL_SECONDS) + 1):
        first = len(parents)
        parents += [-1, *range(first, first + chain_pages - 1)]
        scans.append(
            Request(
                seconds=number * INTERVAL_SECONDS,
                prompt_tokens=DOCUMENT_TOKENS,
                chain=np.arange(first, first + chain_pages, dtype=np.int32),
                session=NOT_COUNTED,
                first=False,
            )
        )
    requests = list(heapq.merge(workload.requests, scans, key=lambda request: request.seconds))
    return Workload(f"{workload.name}, scans", requests, np.array(parents, np.int32))
