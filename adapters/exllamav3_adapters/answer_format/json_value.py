"""Where a JSON value ends in text that arrives in pieces."""

from __future__ import annotations


class JsonValueEnd:
    """Follows one value from its first character, which the first piece begins with.

    Objects and lists end with their bracket, strings with their quote; a number or a word ends before the first
    character that cannot belong to it. What is no JSON is followed all the same, by its brackets and quotes, up to a
    tag: outside strings there is no `<` in JSON, and the value is broken there.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_bare = False
        self.is_complete = False
        self.is_broken = False

    def take(self, text: str) -> int:
        """How many characters of the text belong to the value."""
        assert not self.is_complete
        for at, char in enumerate(text):
            if char == "<" and not self._in_string:
                self.is_broken = True
                return at
            if self._is_bare:
                if char in ",]}" or char.isspace():
                    self.is_complete = True
                    return at
            elif self._in_string:
                self._take_in_string(char)
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
            elif self._depth == 0:
                self._is_bare = True
            if not self._is_bare and not self._in_string and self._depth <= 0:
                self.is_complete = True
                return at + 1
        return len(text)

    def _take_in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
