"""A job that leaves recurrent checkpoints where they are worth most, and resumes at them.

On a model without recurrent layers, and beside a recurrent cache that `install_checkpoints` has not changed, it is a
`Job` like any other. exllamav3 1.6.5 prefills from page to page: where a job resumes inside a page, or a checkpoint
lies inside one, the tokens up to there are a forward of their own (`_prefill_within_page`).
"""

from __future__ import annotations

import time
from typing import Any

import torch
from exllamav3 import Job
from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.pagetable import Sequence

from exllamav3_adapters.exl3.checkpoint_cache import CheckpointCache
from exllamav3_adapters.exl3.frontier_index import Frontier


class RecurrentJob(Job):  # type: ignore[misc]
    """`__init__` stays exllamav3's, which runs again when a long generation is requeued: what is set below outlives
    that."""

    time_first_prefill: float | None

    _head_end: int | None = None
    """Where prefill stops once for a checkpoint."""
    _has_kept_prompt: bool = False
    _sent: tuple[int, dict[str, Any]] | None = None
    """Position and stash of the last token whose text is sent, while a stop string may yet take back what follows."""
    _ends_at_sent: bool = False

    @property
    def leaves_checkpoints(self) -> bool:
        """False: none of its own outlives it."""
        return True

    @property
    def is_replay(self) -> bool:
        """Its prompt is a prefix of others: only the exact end of it is worth a checkpoint."""
        return False

    @property
    def num_head_tokens(self) -> int:
        """How many tokens at the beginning other prompts share."""
        return 0

    @property
    def _checkpoints(self) -> CheckpointCache | None:
        cache = self.generator.recurrent_cache
        return cache if isinstance(cache, CheckpointCache) and not self.embeddings else None

    @property
    def _sequence(self) -> Sequence:
        return self.sequences[0]

    # --- resuming ----------------------------------------------------------------------------------------------

    def allocate_pages(self) -> None:
        cache, sequence = self._checkpoints, self._sequence
        if cache is None:
            super().allocate_pages()
            return
        found = cache.find(sequence.page_hashes, sequence.sequence_ids.torch())
        with cache.claiming(found[0][1] if found else None):
            super().allocate_pages()
        kind = "page" if sequence.kv_position else None
        for position, frontier in found:
            if position <= sequence.kv_position:
                break
            if self._resume_at(cache, position, frontier):
                kind = "frontier"
                break
        if not self.is_requeued:
            self._count_resumed(cache, kind)
            self._head_end = self._find_head_end(cache)

    def _resume_at(self, cache: CheckpointCache, position: int, frontier: Frontier) -> bool:
        """False where a part of it went while pages were allocated."""
        sequence, num_pages = self._sequence, position // PAGE_SIZE
        if any(page.kv_position != PAGE_SIZE for page in sequence.allocated_pages[:num_pages]):
            return False
        stashed = cache.get_stashed(frontier.key)
        page = sequence.allocated_pages[num_pages]
        if stashed is None or (page.kv_position < frontier.num_tokens and not cache.fetch_partial(frontier, page)):
            return False
        self.free_recurrent_state()
        self.recurrent_state = self.generator.recurrent_state_from_stashed(stashed, position)
        self.last_recurrent_checkpoint_pos = position
        self.cached_tokens += position - sequence.kv_position
        sequence.kv_position = position
        return True

    def _count_resumed(self, cache: CheckpointCache, kind: str | None) -> None:
        sequence = self._sequence
        if kind is not None:
            cache.hits[kind] += 1
        cache.num_tokens_resumed += sequence.kv_position
        num_known = 0
        for page, phash in zip(sequence.allocated_pages, sequence.page_hashes, strict=False):
            if page.kv_position != PAGE_SIZE and not cache.holds_page(phash):
                break
            num_known += PAGE_SIZE
        cache.num_tokens_replayed += max(0, num_known - sequence.kv_position)

    def _find_head_end(self, cache: CheckpointCache) -> int | None:
        if not self._keeps_ends:
            return None
        end = self.num_head_tokens if cache.reaches_into_pages else self.num_head_tokens // PAGE_SIZE * PAGE_SIZE
        return end if self._sequence.kv_position < end < len(self._sequence.sequence_ids) - 1 else None

    # --- prefill -----------------------------------------------------------------------------------------------

    def prefill(self, results: list[dict[str, Any]], chunk_size: int | None = None) -> None:
        cache, sequence = self._checkpoints, self._sequence
        if cache is None or sequence.prefill_complete:
            super().prefill(results, chunk_size)
            return
        if self.time_first_prefill is None:
            self.time_first_prefill = time.time()
        with cache.timing(sequence):
            self._prefill_chunk(results, chunk_size)

    def _prefill_chunk(self, results: list[dict[str, Any]], chunk_size: int | None) -> None:
        sequence = self._sequence
        while (end := self._end_within_page()) is not None:
            self._prefill_within_page(end, results)
            self._keep_head()
        if self._head_end is not None:
            distance = self._head_end // PAGE_SIZE * PAGE_SIZE - sequence.kv_position
            chunk_size = min(chunk_size or self.generator.max_chunk_size, distance)
        super().prefill(results, chunk_size)
        self._keep_head()

    def _end_within_page(self) -> int | None:
        """Where the next forward has to end if it must begin or end inside a page."""
        position, head_end = self._sequence.kv_position, self._head_end
        page_end = (position // PAGE_SIZE + 1) * PAGE_SIZE
        last = len(self._sequence.sequence_ids) - 1
        if position >= last:
            return None
        if head_end is not None and position < head_end < page_end:
            return head_end
        return min(page_end, last) if position % PAGE_SIZE else None

    def _prefill_within_page(self, end: int, results: list[dict[str, Any]]) -> None:
        sequence, generator = self._sequence, self.generator
        start = sequence.kv_position
        index, offset = divmod(start, PAGE_SIZE)
        token_ids = sequence.sequence_ids.torch_slice(start, end)
        generator.model.prefill(
            input_ids=token_ids,
            params={
                "attn_mode": "flash_attn",
                "block_table": sequence.block_index_tensor,
                "cache": generator.cache,
                "cache_seqlens": torch.tensor([start], dtype=torch.int32),
                "recurrent_states": [self.recurrent_state.target],
                "indexed_embeddings": self.embeddings,
                "inv_freq": self.alt_rope_freqs,
                "mm_span_prefix": 0,
            },
        )
        page = sequence.allocated_pages[index]
        page.sequence[:, offset : offset + end - start].copy_(token_ids)
        page.prev_hash = sequence.allocated_pages[index - 1].phash if index else None
        page.kv_position = max(page.kv_position, end - index * PAGE_SIZE)
        page.can_revert = False
        sequence.kv_position = end
        last = len(sequence.sequence_ids) - 1
        sequence.prefill_complete = end >= last
        results.append(
            {
                "job": self,
                "stage": "prefill",
                "eos": False,
                "curr_progress": end,
                "max_progress": last,
                "serial": self.serial_number,
                "identifier": self.identifier,
            }
        )

    # --- leaving checkpoints -----------------------------------------------------------------------------------

    def maybe_stash_recurrent(self, cache: Any, interval: int | None = None) -> None:
        """Called by the generator between prefill and decoding, without an interval: the end of the prompt is here."""
        super().maybe_stash_recurrent(cache, interval)
        if interval is not None or self.is_requeued or self._has_kept_prompt or not self.is_prefill_done():
            return
        self._has_kept_prompt = True
        if self._keeps_ends and not self.is_replay:
            self._keep(self._sequence.kv_position, self.recurrent_state)

    def receive_sample(self, *arguments: Any, **options: Any) -> tuple[bool, Any, bool]:
        outcome: tuple[bool, Any, bool] = super().receive_sample(*arguments, **options)
        if self.stop_strings:
            self._note_sent()
        return outcome

    @torch.inference_mode()
    def keep_progress(self) -> None:
        """Leaves a checkpoint where the job has come to. For one that is about to be cancelled, between two steps."""
        if self.recurrent_state is None or self.is_finished:  # it waits, or is done
            self._drop_sent()
        elif self._sent is not None:
            self._keep_sent()
        elif not self.held_tokens:
            self._keep(self._sequence.kv_position, self.recurrent_state)

    def deallocate_pages(self) -> None:
        if self.is_finished and self.recurrent_state is not None and self._keeps_ends:
            self._keep_answer()
        super().deallocate_pages()

    @property
    def _keeps_ends(self) -> bool:
        return self._checkpoints is not None and self._checkpoints.keeps_frontiers and self.leaves_checkpoints

    def _keep_head(self) -> None:
        if self._head_end is not None and self._sequence.kv_position == self._head_end:
            self._keep(self._head_end, self.recurrent_state)
            self._head_end = None

    def _keep_answer(self) -> None:
        """The last sampled token was never computed, so this is what the client was sent, up to a token."""
        if self._ends_at_sent and self._sent is not None:
            self._keep_sent()
            return
        self._drop_sent()
        self._keep(self._sequence.kv_position, self.recurrent_state)

    def _note_sent(self) -> None:
        """Tokens are held back, and with them their text, while a stop string may begin in them. The first of them is
        sampled and not computed yet, so the state is that of what was sent."""
        if not self._keeps_ends:
            return
        if self.is_finished:
            # Text was taken back only where a stop string is what ended it; it is then in what is held.
            self._ends_at_sent = any(self.held_text.startswith(stop) for stop in self.stop_strings)
        elif not self.held_tokens:
            self._drop_sent()
        elif len(self.held_tokens) == 1 and self.recurrent_state is not None:
            self._drop_sent()
            self._sent = self._sequence.kv_position, self.recurrent_state.stash()

    def _keep_sent(self) -> None:
        assert self._sent is not None
        (position, stashed), self._sent = self._sent, None
        self._keep(position, stashed)

    def _drop_sent(self) -> None:
        if self._sent is not None:
            self.generator.recurrent_cache._release(self._sent[1])
            self._sent = None

    def _keep(self, position: int, state: Any) -> None:
        """`state` is a `PairedState`, or the stash of one, at `position`."""
        cache, sequence = self._checkpoints, self._sequence
        index, num_tokens = divmod(position, PAGE_SIZE)
        if cache is None or not self.leaves_checkpoints or not position:
            return
        anchor = sequence.allocated_pages[index - 1].phash if index else None
        if not num_tokens:
            assert anchor is not None
            cache.keep_at_page(anchor, state)
        else:
            tokens = sequence.sequence_ids.torch_slice(index * PAGE_SIZE, position)
            cache.keep_in_page(sequence.allocated_pages[index], anchor, tokens, state)
