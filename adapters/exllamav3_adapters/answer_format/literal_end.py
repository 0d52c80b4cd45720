"""Where a value ends among others, in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Mapping


class LiteralEnd:
    """Follows a value from its first character to the comma or the bracket behind it, or to `limit`."""

    def __init__(self, quotes: Mapping[str, bool], limit: str) -> None:
        """`quotes`: what strings within the value begin and end with, longer ones first, and whether backslashes
        escape in them."""
        self._quotes = quotes
        self._limit = limit
        self._words = (*quotes, limit)
        self._longest = max(map(len, self._words))
        self._quote: str | None = None
        self._depth = 0
        self.is_complete = False

    def take(self, text: str) -> int:
        """How many characters belong to the value. What is left must come again, with more behind it."""
        at = 0
        while at < len(text) and not self.is_complete:
            if len(text) - at < self._longest and self._is_begun(text[at:]):
                break
            length = self._length(text, at)
            if length == 0:
                break
            at += length
        return at

    def _is_begun(self, end: str) -> bool:
        """Whether the text may end within a word that counts here."""
        if self._quote is None:
            return any(len(word) > len(end) and word.startswith(end) for word in self._words)
        quote = len(self._quote) > len(end) and self._quote.startswith(end)
        return quote or (len(self._limit) > len(end) and self._limit.startswith(end)) or (end == "\\")

    def _length(self, text: str, at: int) -> int:
        """Of the next word of the value; 0 where it is over."""
        if text.startswith(self._limit, at):
            self.is_complete = True
            return 0
        if self._quote is not None:
            if text[at] == "\\" and self._quotes[self._quote]:
                return 2
            if not text.startswith(self._quote, at):
                return 1
            length, self._quote = len(self._quote), None
            return length
        self._quote = next((quote for quote in self._quotes if text.startswith(quote, at)), None)
        if self._quote is not None:
            return len(self._quote)
        return self._bracket_length(text[at])

    def _bracket_length(self, char: str) -> int:
        if char in "([{":
            self._depth += 1
        elif char in ")]}":
            self.is_complete = self._depth == 0
            self._depth -= 1
        elif char == ",":
            self.is_complete = self._depth == 0
        return 0 if self.is_complete else 1
