"""A completed text in OpenAI's form, whole. Plain values: `provider.py` makes LiteLLM's of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from exllamav3_adapters.contract import Finished, Text, TokenLogprob
from litellm_exllamav3.answer_message import usage

_LEAST_LOGPROB: Final = -9999.0
"""OpenAI's word for an impossible token. JSON has no infinity."""


class WholeText:
    """All choices of a completion."""

    def __init__(self, *, num_choices: int = 1, with_logprobs: bool = False) -> None:
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(num_choices)]
        self._finished: list[Finished | None] = [None] * num_choices
        self._with_logprobs = with_logprobs

    @property
    def complete(self) -> bool:
        return None not in self._finished

    def add(self, index: int, event: Text | Finished) -> None:
        if isinstance(event, Finished):
            self._finished[index] = event
        else:
            self._texts[index].append(event.text)
            self._logprobs[index] += event.logprobs

    def choices(self) -> list[dict[str, Any]]:
        """`{"index", "text", "logprobs", "finish_reason"}` each, once complete."""
        return [
            {
                "index": index,
                "text": "".join(self._texts[index]),
                "logprobs": text_logprobs(self._logprobs[index]) if self._with_logprobs else None,
                "finish_reason": finished.reason if finished is not None else None,
            }
            for index, finished in enumerate(self._finished)
        ]

    def usage(self) -> dict[str, Any]:
        """Once complete."""
        return usage([finished for finished in self._finished if finished is not None])


def text_logprobs(tokens: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """`/v1/completions`' own form of them. `offset`: characters of this choice's text before the first token."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [max(token.logprob, _LEAST_LOGPROB) for token in tokens],
        "top_logprobs": [_top(token) for token in tokens],
        "text_offset": offsets,
    }


def _top(token: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and the chosen one. Of tokens that read the same the likelier counts."""
    top: dict[str, float] = {}
    for text, logprob in (*token.top, (token.token, token.logprob)):
        top[text] = max(logprob, _LEAST_LOGPROB, top.get(text, _LEAST_LOGPROB))
    return top
