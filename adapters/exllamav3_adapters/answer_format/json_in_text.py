"""Where a JSON list or object ends that a closing tag follows."""

from __future__ import annotations

import re


class JsonInText:
    """Finds the first closing tag outside of the JSON's strings, in text that grows.

    A line break ends a string that no quote has closed, so that JSON with a fault does not hide the tag for good.
    """

    def __init__(self, closing: str) -> None:
        self._word = re.compile(rf'"(?:[^"\\\x00-\x1f]|\\.)*+(?P<quote>"|\\?\Z)|(?P<closing>{re.escape(closing)})')
        self._longest = len(closing)
        self._at = 0  # nothing before it can be the tag

    def find(self, text: str) -> int | None:
        """Where the tag begins; None: not known yet. `text` begins with that of the last call."""
        for word in self._word.finditer(text, self._at):
            if word["closing"]:
                return word.start()
            if word["quote"] != '"':
                self._at = word.start()
                return None
            self._at = word.end()
        self._at = max(self._at, len(text) - self._longest)
        return None
