"""What LiteLLM loses of a streamed completion between the provider and the client, kept beside it.

Its `TextCompletionStreamWrapper` (1.108) drops logprobs, writes no text where a chunk has none, and reads the first
choice of a chunk alone, so that only choice 0 ever finishes. The provider writes down what it sends, and the hook
that sees the client's chunks puts back what is missing. Both find the ledger in a context variable.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from exllamav3_adapters.contract import Finished, Text, TokenLogprob
from litellm_exllamav3.text_answer import text_logprobs


@dataclass(slots=True)
class _Choice:
    pieces: deque[Text]
    finished: Finished | None = None
    num_chars: int = 0
    """Of its text, that have passed the hook."""
    logprob_chars: int = 0
    """Of the tokens whose logprobs have passed."""
    told: bool = False
    """Whether its finish reason has passed."""


class TextLedger:
    """Of one request, on the loop. Of no use before the provider's first entry: another provider may answer."""

    def __init__(self) -> None:
        self._choices: defaultdict[int, _Choice] = defaultdict(lambda: _Choice(pieces=deque()))

    def wrote(self, index: int, event: object) -> None:
        """To be called before the event's chunk is sent."""
        if isinstance(event, Finished):
            self._choices[index].finished = event
        elif isinstance(event, Text):
            self._choices[index].pieces.append(event)

    async def repaired(self, chunks: AsyncIterable[Any], make_chunk: Callable[..., Any]) -> AsyncIterator[Any]:
        """The client's chunks. Those of our own answers are made anew, of the fields of OpenAI's."""
        async for chunk in chunks:
            is_ours = self._choices and getattr(chunk, "object", None) == "text_completion" and chunk.choices
            yield make_chunk(**self._repaired(chunk)) if is_ours else chunk

    def _repaired(self, chunk: Any) -> dict[str, Any]:
        return {
            "id": chunk.id,
            "created": chunk.created,
            "model": chunk.model,
            "choices": [self._choice(choice) for choice in chunk.choices],
            "usage": getattr(chunk, "usage", None),
        }

    def _choice(self, sent: Any) -> dict[str, Any]:
        text, reason = sent.text or "", sent.finish_reason
        choice = self._choices[sent.index]
        logprobs = self._logprobs(choice, text)
        if not choice.pieces and choice.finished is not None and reason is None and sent.index != 0 and not choice.told:
            choice.told, reason = True, choice.finished.reason
        return {"index": sent.index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, choice: _Choice, text: str) -> dict[str, Any] | None:
        """Of the pieces that this text completes: LiteLLM may cut and join them."""
        choice.num_chars += len(text)
        tokens: list[TokenLogprob] = []
        begin = choice.logprob_chars
        while choice.pieces and choice.logprob_chars + len(choice.pieces[0].text) <= choice.num_chars:
            piece = choice.pieces.popleft()
            choice.logprob_chars += len(piece.text)
            tokens += piece.logprobs
        return text_logprobs(tokens, begin) if tokens else None


_LEDGER: ContextVar[TextLedger | None] = ContextVar("litellm_exllamav3_text_ledger", default=None)


def open_ledger() -> None:
    """For the request of this context."""
    _LEDGER.set(TextLedger())


def close_ledger() -> None:
    """In case another request's is left in this context."""
    _LEDGER.set(None)


def find_ledger() -> TextLedger:
    """This request's, or one that nobody reads."""
    return _LEDGER.get() or TextLedger()


def repaired_stream(chunks: Any, make_chunk: Callable[..., Any]) -> Any:
    """The client's chunks with what the ledger of this request knows; as they are where there is none."""
    ledger = _LEDGER.get()
    return chunks if ledger is None else ledger.repaired(chunks, make_chunk)
