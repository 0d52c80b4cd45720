"""The JSON object of a call's arguments, written as its members are read."""

from __future__ import annotations

import json


class ArgumentsObject:
    """Each method returns the text that it adds; all of it together is the object.

    Of a member whose value has not begun nothing is written, so that an answer that is cut leaves what the whole one
    would have begun with.
    """

    def __init__(self) -> None:
        self._separator = ""
        self._key: str | None = None

    def open(self) -> str:
        return "{"

    def begin(self, key: str) -> None:
        self._key = key

    def add(self, value: str) -> str:
        """More JSON of the member that began last."""
        if not value or self._key is None:
            return value
        key, self._key = self._key, None
        separator, self._separator = self._separator, ", "
        return f"{separator}{json_text(key)}: {value}"

    def close(self) -> str:
        return "}"


def json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def in_quotes(text: str) -> str:
    """A piece of a JSON string, without the quotes."""
    return json_text(text)[1:-1]
