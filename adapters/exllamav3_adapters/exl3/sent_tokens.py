"""Which tokens stand behind the text that a request was sent, from exllamav3's results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exllamav3_adapters.conversation_tokens import Piece


class SentTokens:
    """Pieces of one answer, in order, on the scheduler's thread. A requeued answer goes on in the same object.

    It ends for good where a token is no text, such as a control token in the middle of an answer: a client that sends
    the text back did not write it, and must not get it into another's prompt.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._ended = False

    def add(self, result: dict[str, Any], text: str, id_to_text: Sequence[str]) -> None:
        """`text` is what was sent for the result, `id_to_text` what each token is as a part of an answer."""
        if self._ended:
            return
        token_ids = _sent_ids(result)
        texts = [id_to_text[token_id] for token_id in token_ids]
        joined = "".join(texts)
        if joined != text and "\ufffd" in joined and result.get("eos_reason") != "stop_string":
            # Bytes of characters, decoded together.
            if all(each and ("\ufffd" in each or each in text) for each in texts):
                self.pieces.append(Piece(tuple(token_ids), text))
            else:
                self._ended = True
            return
        for token_id, token_text in zip(token_ids, texts, strict=True):
            if not token_text or not text.startswith(token_text):
                self._ended = True
                return
            text = text[len(token_text) :]
            self.pieces.append(Piece((token_id,), token_text))


def _sent_ids(result: dict[str, Any]) -> list[int]:
    """Tokens whose text the result releases, those of a stop string included. What was held back when the end-of-turn
    token came is text after all, as in `released_text`; that token is its last."""
    token_ids = result.get("token_ids")
    if result.get("eos_reason") == "stop_token":
        token_ids = result["held"]["token_ids"][:, :-1]
    found: list[int] = token_ids[0].tolist() if token_ids is not None else []
    return found
