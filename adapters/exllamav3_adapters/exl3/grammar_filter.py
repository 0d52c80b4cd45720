"""Keeps an answer to a grammar (LLGuidance)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from exllamav3 import Filter

from exllamav3_adapters.errors import InvalidRequest

_NOT_ALLOWED: Final = "doesn't satisfy the grammar"
"""LLGuidance's words for a fault of the sampling. All others are of grammars that are too complex."""


class GrammarFilter(Filter):  # type: ignore[misc]
    """A filter that ends the answer when its grammar is complete. Holds one answer's state of a compiled grammar.

    Until `min_tokens` the turn is not ended where the grammar lets the answer go on, and only there.
    """

    def __init__(
        self,
        tokenizer: Any,
        matcher: Any,
        *,
        end_ids: Sequence[int],
        banned_ids: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """`matcher`: an `LLMatcher` at the beginning, which may serve other filters too. `end_ids`: tokens that end the
        turn. `banned_ids`: tokens that the sampler leaves out, wherever the grammar would have them."""
        super().__init__(tokenizer, None, None, True)
        self._start = matcher
        self._matcher = matcher.deep_copy()
        self._min_tokens = min_tokens
        self._num_tokens = 0  # that the matcher consumed
        self._ends = np.array(end_ids, dtype=np.int64)
        self._banned = np.array(banned_ids, dtype=np.int64)

    def attach(self, job: Any) -> None:
        super().attach(job)
        self._mask = np.zeros(self.vocab_size // 32, dtype=np.uint32)

    def reset(self) -> None:
        self._matcher = self._start.deep_copy()
        self._num_tokens = 0

    def accept_token(self, token: int) -> None:
        if self._matcher.is_stopped():
            return
        self._num_tokens += bool(self._matcher.consume_token(token))
        self._check()

    def rollback_tokens(self, num_tokens: int) -> bool:
        """What a stopped matcher was fed it does not remember: False, and the answer is gone through again."""
        if num_tokens > self._num_tokens or self._matcher.is_stopped() or not self._matcher.rollback(num_tokens):
            return False
        self._num_tokens -= num_tokens
        return True

    def get_next_logit_mask(self) -> torch.Tensor:
        """(1, words of 32 tokens), as the contract of exllamav3's filters has it."""
        found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        self._check()
        width = min(len(found), len(self._mask))
        self._mask[:width] = found[:width]
        _clear(self._mask, self._banned)
        if not self._mask.any():
            raise InvalidRequest(
                "the grammar goes on with nothing but banned tokens; ban others, or change it", "banned_tokens"
            )
        if self._num_tokens < self._min_tokens:
            self._go_on()
        return torch.from_numpy(self._mask.view(np.int32)).unsqueeze(0)

    def is_completed(self) -> bool:
        return bool(self._matcher.is_stopped())

    def _go_on(self) -> None:
        without = self._mask.copy()
        _clear(without, self._ends)
        if without.any():
            self._mask[:] = without

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        cause = self._matcher.get_error().partition("<state>")[0].strip()  # what follows shows the answer
        if _NOT_ALLOWED in cause:
            raise RuntimeError("a token was sampled that the grammar does not allow")
        raise InvalidRequest(f"the grammar cannot be followed ({cause}); simplify it", "response_format")


def _clear(mask: np.ndarray[Any, np.dtype[np.uint32]], token_ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    for token_id in token_ids:
        mask[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
