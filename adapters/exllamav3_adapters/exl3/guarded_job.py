"""A job whose faults stay its own.

exllamav3 1.6.5 contains what a job raises while it allocates or prefills, but lets what it raises around sampling
escape `iterate`, after K/V of other rows has advanced, which ends every job. Here such a fault is noted, the job is
passed through the rest of the batch without effect, and the generator releases it like a finished one.
"""

from __future__ import annotations

from typing import Any

import torch

from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.exl3.aging_pagetable import AgingPageTable
from exllamav3_adapters.exl3.pins import PinnedPages
from exllamav3_adapters.exl3.recurrent_job import RecurrentJob
from exllamav3_adapters.exl3.request import Request


class GuardedJob(RecurrentJob):
    """Built with a `Request` as its identifier. `__init__` stays exllamav3's: a requeue calls it again."""

    device_logit_mask: torch.Tensor | None

    fault: Exception | None = None
    pins: PinnedPages | None = None

    def current_new_pages_required(self) -> int:
        """The generator starts a job where no more pages than this are held by none."""
        required: int = super().current_new_pages_required()
        return required + (self.pins.num_withheld(set(self.all_unique_hashes)) if self.pins is not None else 0)

    def note_fault(self, fault: Exception) -> None:
        """The first fault is the cause, later ones are its consequences."""
        if self.fault is None:
            self.fault = fault

    @property
    def request(self) -> Request:
        request: Request = self.identifier
        return request

    @property
    def leaves_checkpoints(self) -> bool:
        return self.request.retain and self.fault is None

    @property
    def is_replay(self) -> bool:
        return self.request.background

    @property
    def num_head_tokens(self) -> int:
        return self.request.prompt.num_head_tokens

    def _check_banned_strings(self, banned_strings: list[str]) -> None:
        """exllamav3 asserts that a model with sliding windows can go back over each of them."""
        try:
            super()._check_banned_strings(banned_strings)
        except AssertionError:
            raise InvalidRequest(
                "banned_strings holds one of more tokens than this model can take back; make it shorter",
                "banned_strings",
            ) from None

    def activate(self) -> None:
        try:
            super().activate()
        except Exception as fault:
            self.note_fault(fault)

    def allocate_pages(self) -> None:
        if self.fault is not None:
            raise self.fault  # exllamav3 contains what is raised here
        if self.request.retain:
            self._claim_pages()
            return
        persistable = self._persistable_before()
        self._claim_pages()
        for sequence in self.sequences:
            for page in sequence.allocated_pages:
                page.persistable = persistable.get(page.phash, False)

    def _claim_pages(self) -> None:
        """A long generation claims its chain again each time it is requeued, and a background prefill whenever it had
        to yield: neither says that a prompt is wanted once more."""
        if not isinstance(self.pagetable, AgingPageTable):
            super().allocate_pages()
            return
        counts = self.request.counts and not self.is_requeued
        prompt = self.request.prompt
        # What is learnt of pages outlives the process, and placeholders of images do not.
        lasting = prompt.token_ids[: prompt.num_lasting_tokens]
        with self.pagetable.claiming(lasting if counts and lasting else None):
            super().allocate_pages()

    def _persistable_before(self) -> dict[bytes, bool]:
        """Page hash -> whether some retained request already has the page; its own claim to it must stay."""
        pages = [self.pagetable.get_live_page(phash) for phash in self.all_unique_hashes]
        return {page.phash: page.persistable for page in pages if page is not None}

    def prepare_logit_mask(self) -> None:
        try:
            super().prepare_logit_mask()
            self._check_mask()
        except Exception as fault:
            self.note_fault(fault)

    def _check_mask(self) -> None:
        """Where filters leave nothing, the sampler would draw any token at all."""
        mask = self.device_logit_mask
        if mask is None or not self.filters:
            return
        if mask.dtype == torch.int32:
            left = bool(self.pinned_logit_bitmask.any())
        else:
            left = bool((self.pinned_logit_mask > float("-inf")).any())
        if not left:
            raise InvalidRequest(
                "banned_strings leaves nothing that the answer's grammar can go on with; ban other texts, or change it",
                "banned_strings",
            )

    def prepare_sampling_past_ids(self) -> None:
        try:
            super().prepare_sampling_past_ids()
        except Exception as fault:
            self.note_fault(fault)

    def receive_logits(self, logits: torch.Tensor) -> tuple[Any, Any, Any, Any]:
        if self.fault is None:
            self._trim_logit_mask(logits.shape[-1])
            try:
                sampled: tuple[Any, Any, Any, Any] = super().receive_logits(logits)
                return sampled
            except Exception as fault:
                self.note_fault(fault)
        return torch.zeros((1, 1), dtype=torch.long), None, None, None

    def _trim_logit_mask(self, num_logits: int) -> None:
        """A mask of blocked tokens is as wide as the padded vocabulary, and logits of a CPU model are not."""
        mask = self.device_logit_mask
        if mask is not None and mask.dtype != torch.int32 and mask.shape[-1] > num_logits:
            self.device_logit_mask = mask[..., :num_logits]

    def receive_sample(
        self,
        logits: Any,
        next_token: Any,
        next_k_tokens: Any,
        next_k_probs: Any,
        next_prob: Any,
        results: list[dict[str, Any]],
        first_sample_in_sd_batch: bool = True,
    ) -> tuple[bool, Any, bool]:
        if self.fault is None:
            try:
                outcome: tuple[bool, Any, bool] = super().receive_sample(
                    logits, next_token, next_k_tokens, next_k_probs, next_prob, results, first_sample_in_sd_batch
                )
                return outcome
            except Exception as fault:
                self.note_fault(fault)
        results.append(
            {
                "job": self,
                "serial": self.serial_number,
                "stage": "error",
                "eos": True,
                "error": self.fault,
                "identifier": self.identifier,
            }
        )
        return True, next_token, False  # "finished": the generator releases its pages after the batch
