"""exllamav3's tokenizer, with two texts of an answer: as it was, and as the reader of a chat's answers wants it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch


class AnswerTokenizer:
    """Passes for the tokenizer that it wraps, and changes what decoding *with special tokens* gives: the tags of the
    model's form as text, as far as they are special tokens, and nothing for the others.

    exllamav3 itself knows all or none, and for many tokenizers what it has without special tokens holds them all the
    same.
    """

    def __init__(self, inner: Any, tags: Collection[str]) -> None:
        self._inner = inner
        self.special_tokens = _special_tokens(inner)
        """Text -> id"""
        self._silent = frozenset(
            token_id for text, token_id in self.special_tokens.items() if not any(text in tag for tag in tags)
        )
        self._names: list[str] = list(inner.get_id_to_piece_list(True))
        for text, token_id in self.special_tokens.items():
            self._names[token_id] = text
        self._pieces = ["" if at in self._silent else piece for at, piece in enumerate(self._names)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def names(self) -> list[str]:
        """Every token's own text, for people."""
        return self._names

    def get_id_to_piece_list(self, include_special_tokens: bool = False) -> list[str]:
        return self._pieces if include_special_tokens else self._inner.get_id_to_piece_list(False)

    def decode(self, ids: torch.Tensor | list[torch.Tensor], decode_special_tokens: bool = False) -> str | list[str]:
        """As exllamav3's: `ids` of shape (tokens,), or (batch, tokens) for a list of texts."""
        if isinstance(ids, list):
            return [text for each in ids if isinstance(text := self.decode(each, decode_special_tokens), str)]
        if ids.dim() > 1:
            return self.decode(list(ids), decode_special_tokens)
        if decode_special_tokens:
            ids = torch.tensor(
                [token_id for token_id in ids.tolist() if token_id not in self._silent], dtype=torch.long
            )
        found: str = self._inner.decode(ids, decode_special_tokens)
        return found


def _special_tokens(tokenizer: Any) -> dict[str, int]:
    """Those that the tokenizer's files call special, and those that end or begin a turn."""
    found = {
        token.content: token_id
        for token_id, token in tokenizer.tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    for token_id, token in tokenizer.tokenizer_config_dict.get("added_tokens_decoder", {}).items():
        if token.get("special"):
            found[token["content"]] = int(token_id)
    names = tokenizer.get_id_to_piece_list(True)
    for token_id in (tokenizer.bos_token_id, tokenizer.eos_token_id, *tokenizer.config.eos_token_id_list):
        if token_id is not None and 0 <= token_id < len(names) and token_id not in found.values():
            found[names[token_id]] = token_id
    return {text: token_id for text, token_id in found.items() if token_id < len(names)}
