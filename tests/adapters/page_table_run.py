"""Jobs on a real page table, without a model: what the scheduler does to pages, in any order."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch

from exllamav3_adapters.cpu.install import install

install()

from exllamav3 import Job
from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.pagetable import PageTable, Sequence, random_hash

from exllamav3_adapters.policies.leaf_order import LeafOrder
from exllamav3_adapters.policies.page_forest import PageRecord

MAX_JOBS = 4
NUM_HEADS = 12


def make_page_table(num_pages: int) -> Any:
    generator = SimpleNamespace(recurrent_cache=None, enable_defrag=True, draft_cache=None, cpu_page_cache=None)
    cache = SimpleNamespace(
        max_num_tokens=num_pages * PAGE_SIZE, model=SimpleNamespace(loaded_tp=False), get_all_tensors=list
    )
    generator.pagetable = PageTable(generator, cache)
    return generator.pagetable


class PageTableRun:
    """Each step is one thing that exllamav3 does, drawn at random. Prompts share heads, and answers repeat."""

    def __init__(self, page_table: Any, seed: int) -> None:
        self.page_table = page_table
        self.jobs: list[Any] = []
        self._draw = random.Random(seed)
        self._prompts: list[list[int]] = []

    def step(self) -> None:
        steps = [self.start, self.prefill, self.generate, self.generate, self.rewind, self.finish, self.clear]
        self._draw.choice(steps)()
        if not self.jobs and self._draw.random() < 0.2:
            self.defrag()

    def start(self) -> None:
        tokens = self._prompt()
        ids = torch.tensor([tokens], dtype=torch.long)
        sequence = Sequence(ids, ids)
        hashes, _ = sequence.prepare(False, self._draw.randrange(1, 400))
        new_pages = sequence.new_unique_pages + sum(h not in self.page_table.referenced_pages for h in hashes)
        if len(self.jobs) >= MAX_JOBS or new_pages > self.page_table.num_unreferenced_pages():
            return
        sequence.allocate_pages(self.page_table, None, set(hashes))
        self.jobs.append(
            SimpleNamespace(
                sequences=[sequence],
                pagetable=self.page_table,
                generator=self.page_table.generator,
                answer=self._draw.randrange(2),
            )
        )

    def prefill(self) -> None:
        """One chunk of a page, as `Job.prefill` does it."""
        job = self._draw.choice(self.jobs) if self.jobs else None
        if job is None or self._is_prefilled(job):
            return
        sequence = job.sequences[0]
        first = sequence.kv_position // PAGE_SIZE
        if sequence.allocated_pages[first].kv_position == PAGE_SIZE:
            sequence.kv_position = (first + 1) * PAGE_SIZE
            sequence.allocated_pages[first].can_revert = False
            return
        end = min((first + 1) * PAGE_SIZE, len(sequence.sequence_ids) - 1)
        for index in range(first, min(end // PAGE_SIZE + 1, len(sequence.allocated_pages))):
            page = sequence.allocated_pages[index]
            page.kv_position = min(max(end - index * PAGE_SIZE, 0), PAGE_SIZE)
            page.prev_hash = sequence.allocated_pages[index - 1].phash if index else None
            start, stop = max(index * PAGE_SIZE, sequence.kv_position), min((index + 1) * PAGE_SIZE, end)
            if stop > start:
                page.sequence[:, start - index * PAGE_SIZE : stop - index * PAGE_SIZE] = (
                    sequence.sequence_ids.torch_slice(start, stop)
                )
            page.can_revert = False
        sequence.kv_position = end

    def generate(self) -> None:
        job = self._draw.choice(self.jobs) if self.jobs else None
        if job is None or not self._is_prefilled(job):
            return
        sequence = job.sequences[0]
        index, offset = divmod(sequence.kv_position, PAGE_SIZE)
        if index >= len(sequence.allocated_pages):
            return
        page, count = sequence.allocated_pages[index], min(self._draw.randrange(1, 200), PAGE_SIZE - offset)
        sequence.sequence_ids.append(torch.full((1, count), job.answer, dtype=torch.long))
        position = sequence.kv_position
        page.sequence[:, offset : offset + count] = sequence.sequence_ids.torch_slice(position, position + count)
        page.kv_position += count
        page.can_revert = False
        sequence.kv_position += count
        if offset + count == PAGE_SIZE:
            Job.hash_completed_page(job, sequence, index)

    def rewind(self) -> None:
        """A banned string takes tokens back, a finished page included, if it is the job's alone."""
        job = self._draw.choice(self.jobs) if self.jobs else None
        if job is None or not self._is_prefilled(job):
            return
        sequence = job.sequences[0]
        generated = sequence.kv_position - len(sequence.page_hashes) * PAGE_SIZE
        back = self._draw.randrange(1, 40)
        pages = sequence.allocated_pages[(sequence.kv_position - back) // PAGE_SIZE :]
        if generated <= back or any(page.ref_count > 1 for page in pages):
            return
        sequence.kv_position -= back
        sequence.sequence_ids.truncate(len(sequence.sequence_ids) - back)
        for index in range(sequence.kv_position // PAGE_SIZE, len(sequence.allocated_pages)):
            page = sequence.allocated_pages[index]
            page.can_revert = False
            if page.kv_position == PAGE_SIZE:
                page.update_hash(random_hash())
            page.kv_position = max(0, min(page.kv_position, sequence.kv_position - index * PAGE_SIZE))

    def finish(self) -> None:
        """Whether done or cancelled: also before anything was computed, so that untouched pages are reverted."""
        if self.jobs:
            job = self.jobs.pop(self._draw.randrange(len(self.jobs)))
            self.page_table.deallocate_pages(job.sequences[0].allocated_pages)

    def clear(self) -> None:
        """Now and then a page is forgotten, wherever it is in its chain."""
        if self._draw.random() < 0.3 and self.page_table.unreferenced_pages:
            self._draw.choice(list(self.page_table.unreferenced_pages.values())).clear()

    def defrag(self) -> None:
        self.page_table.last_defrag_serial = -(10**9)
        self.page_table.defrag()

    def _prompt(self) -> list[int]:
        kind = self._draw.random()
        if kind < 0.4:
            head = self._draw.randrange(NUM_HEADS)
            tokens = [head] * (1 + head % 3) * PAGE_SIZE + [self._draw.randrange(2, 1000)] * self._draw.randrange(
                1, 600
            )
        elif kind < 0.6 and self._prompts:
            base = self._draw.choice(self._prompts)
            cut = self._draw.randrange(len(base) // 2, len(base) + 1)
            tokens = base[:cut] + [self._draw.randrange(2, 50)] * self._draw.randrange(1, 300)
        elif kind < 0.7 and self._prompts:
            tokens = self._draw.choice(self._prompts)
        else:
            tokens = [self._draw.randrange(2, 1000)] * self._draw.randrange(2, 900)
        tokens = tokens[: 5 * PAGE_SIZE]
        self._prompts = [*self._prompts[-12:], tokens]
        return tokens

    @staticmethod
    def _is_prefilled(job: Any) -> bool:
        sequence = job.sequences[0]
        return bool(sequence.kv_position >= len(sequence.sequence_ids) - 1)


def rebuilt_order(table: Any) -> LeafOrder:
    """The order that a table of `install_aging` has to have, built anew. Keeps nothing for credit."""
    records = [
        PageRecord(
            page.number,
            page.phash,
            page.prev_hash,
            empty=page.kv_position == 0,
            referenced=page.ref_count > 0,
            serial=page.access_serial,
        )
        for page in table.all_pages
    ]
    return LeafOrder(records, credited_pages=0, log_credit=table.credit.log_credit)


def assert_is_up_to_date(table: Any, rebuilt: LeafOrder) -> None:
    for page in table.all_pages:
        kept, fresh = table.leaf_order[page.number], rebuilt[page.number]
        for name in ("phash", "parent", "empty", "referenced", "serial", "rooted"):
            assert getattr(kept, name) == getattr(fresh, name), (name, page)
