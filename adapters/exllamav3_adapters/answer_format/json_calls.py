"""Calls as JSON objects, one or several of them, between tags or at the end of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from exllamav3_adapters.answer_format.json_call import JsonCall
from exllamav3_adapters.answer_format.text_search import find_first, held_length
from exllamav3_adapters.answer_format.tool_format import Piece, Prose


class JsonCalls:
    """A `CallReader` of `{...}`, of `[{...}, {...}]`, and of objects that commas or semicolons separate.

    With a closing tag, what is no call is prose up to that tag, and what follows a broken call is dropped up to it.
    Without one, the section ends with the last object, and prose begins where there is none.
    """

    def __init__(self, close: str | None, *, new_call: Callable[[], JsonCall] = JsonCall) -> None:
        self._close = close
        self._new_call = new_call
        self._state: Literal["before", "call", "after", "over", "prose", "dropped"] = "before"
        self._call = new_call()
        self._raw = ""  # of an object that may turn out to be no call
        self._held = ""
        self.rest: str | None = None

    def read(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        text, self._held = self._held + text, ""
        while text and self.rest is None:
            match self._state:
                case "call":
                    text = self._read_call(text, pieces)
                case "prose" | "dropped":
                    text = self._read_to_close(text, pieces)
                case _:
                    text = self._read_between(text)
        return pieces

    def end(self) -> list[Piece]:
        if self._state == "call":
            return self._call.end()
        is_text = self._state == "prose" and len(self._held) == 1
        return [Prose(self._held)] if is_text else []

    # Each of these takes what its state can of the text and returns the rest for the next one.

    def _read_between(self, text: str) -> str:
        skipped = {"before": "[", "after": ",;" if self._close is None else ",;}", "over": ""}[self._state]
        text = text.lstrip(" \t\r\n" + skipped)
        if not text:
            return ""
        if self._close is not None and text.startswith(self._close):
            self.rest = text.removeprefix(self._close)
        elif self._close is not None and self._close.startswith(text):
            self._held = text
        elif self._state == "after" and text[0] == "]":
            self._state = "over"
            return text[1:]
        elif self._state != "over" and text[0] == "{":
            self._state, self._call, self._raw = "call", self._new_call(), ""
            return text
        elif self._state == "before" and self._close is not None:
            self._state = "prose"
            return text
        else:
            self.rest = text
        return ""

    def _read_call(self, text: str, pieces: list[Piece]) -> str:
        pieces += self._call.read(text)
        rest = self._call.rest
        self._raw = "" if self._call.is_begun else self._raw + (text if rest is None else text[: len(text) - len(rest)])
        if rest is None:
            return ""
        self._state = "after"
        if self._call.is_broken:
            if self._raw:
                pieces.append(Prose(self._raw))
            if self._close is None:
                self.rest = rest
            else:
                self._state = "prose" if self._raw else "dropped"
        return rest

    def _read_to_close(self, text: str, pieces: list[Piece]) -> str:
        assert self._close is not None
        at, tag = find_first(text, (self._close,))
        if tag is None:
            at -= held_length(text, (self._close,))
            self._held = text[at:]
        else:
            self.rest = text[at + len(tag) :]
        if self._state == "prose" and at:
            pieces.append(Prose(text[:at]))
        return ""
