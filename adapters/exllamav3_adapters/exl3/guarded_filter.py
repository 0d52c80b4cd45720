"""A filter whose faults stay in its own job."""

from __future__ import annotations

from typing import Any

import torch
from exllamav3 import Filter


class GuardedFilter(Filter):  # type: ignore[misc]
    """Wraps a filter that the generator would call outside the job: an exception there would escape `iterate`
    and fail every job of the batch. The fault is noted on the job, which ends when it next samples."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.tokenizer, inner.trigger_token, inner.prefix_str, inner.eos_after_completed)
        self.inner = inner

    def attach(self, job: Any) -> None:
        super().attach(job)
        self.inner.attach(job)

    def reset(self) -> None:
        self.inner.reset()

    def accept_token(self, token: int) -> None:
        self.inner.accept_token(token)

    def rollback_tokens(self, num_tokens: int) -> bool:
        return bool(self.inner.rollback_tokens(num_tokens))

    def is_completed(self) -> bool:
        return bool(self.inner.is_completed())

    def use_background_worker(self) -> bool:
        return bool(self.inner.use_background_worker())

    def get_next_logit_mask(self) -> torch.Tensor:
        """May run on one of the generator's filter threads."""
        try:
            mask: torch.Tensor = self.inner.get_next_logit_mask()
        except Exception as fault:
            assert self.job is not None
            self.job.note_fault(fault)
            # All tokens allowed: the mask is never used, but the batch goes on as if it were.
            return torch.full((1, self.vocab_size // 32), -1, dtype=torch.int32)
        return mask
