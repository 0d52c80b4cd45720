"""Ends reasoning that goes on for too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from exllamav3 import Filter

from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags

_MOST_PARTS: Final = 4
"""Tokens that one character may have: UTF-8's bytes."""
_BROKEN: Final = "\ufffd"


class ReasoningBudget(Filter):  # type: ignore[misc]
    """A filter that counts the tokens of reasoning and then allows nothing but its end, token by token.

    The end is never begun within a character. Before, between and after it takes everything, so it goes with a grammar
    that has reasoning in it. What is sampled decides, so it can be taken back and gone through again.
    """

    def __init__(
        self, tokenizer: Any, tags: ReasoningTags, budget: int, pieces: Sequence[str], *, is_open: bool
    ) -> None:
        """`pieces`: the text of each token, with the tags as text. `is_open`: the prompt has opened the reasoning."""
        super().__init__(tokenizer, None, None, False)
        self._tags = tags
        self._budget = budget
        self._pieces = pieces
        self._is_open = is_open
        self._ending: list[int] = tokenizer.encode(tags.forced_end, encode_special_tokens=True)[0].tolist()

    @property
    def forced_ids(self) -> list[int]:
        return self._ending

    def attach(self, job: Any) -> None:
        super().attach(job)
        self._everything = torch.full((1, self.vocab_size // 32), -1, dtype=torch.int32)

    def reset(self) -> None:
        self._state: Literal["before", "inside", "ending", "over"] = "inside" if self._is_open else "before"
        self._text = ""  # that may yet hold a tag
        self._num_tokens = 0
        self._num_forced = 0
        self._parts: list[int] = []  # last tokens that hold parts of characters
        self._begin_end()

    def accept_token(self, token: int) -> None:
        match self._state:
            case "before":
                self._look_for_start(token)
            case "inside":
                self._num_tokens += 1
                self._look_for_end(token)
                self._begin_end()
            case "ending":
                self._num_forced += 1
                if self._num_forced == len(self._ending):
                    self._end()

    def get_next_logit_mask(self) -> torch.Tensor:
        """(1, words of 32 tokens)"""
        if self._state != "ending":
            return self._everything
        word, bit = divmod(self._ending[self._num_forced], 32)
        mask = torch.zeros_like(self._everything)
        mask[0, word] = (1 << bit) - ((1 << 32) if bit == 31 else 0)
        return mask

    def is_completed(self) -> bool:
        return self._state == "over"

    def use_background_worker(self) -> bool:
        return False

    def _look_for_start(self, token: int) -> None:
        text = (self._text + self._pieces[token]).lstrip()
        if self._tags.recurs:
            found = text.find(self._tags.start)
            self._text = text[-len(self._tags.start) :]
            begun = found >= 0
        else:
            begun = text.startswith(self._tags.start)
            self._text = text
            if not begun and not self._tags.start.startswith(text):
                self._state = "over"
        if begun:
            self._state, self._text = "inside", ""
            self._begin_end()

    def _look_for_end(self, token: int) -> None:
        piece = self._pieces[token]
        self._parts = [*self._parts, token][-_MOST_PARTS:] if _BROKEN in piece else []
        text = self._text + piece
        self._text = text[-len(self._tags.end) :]
        if self._tags.end in text:
            self._end()

    def _begin_end(self) -> None:
        if self._state == "inside" and self._num_tokens >= self._budget and not self._is_within_character():
            self._state, self._num_forced = "ending", 0

    def _end(self) -> None:
        self._state, self._text = "before" if self._tags.recurs else "over", ""

    def _is_within_character(self) -> bool:
        if not self._parts or self._num_tokens >= self._budget + _MOST_PARTS:  # a broken one is not waited for
            return False
        text: str = self.tokenizer.decode(torch.tensor(self._parts))
        return text.endswith(_BROKEN)
