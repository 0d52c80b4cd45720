"""Calls as JSON objects, one or several of them, between tags or at the end of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from exllamav3_adapters.answer_format.json_call import JsonCall
from exllamav3_adapters.answer_format.text_search import find_first, held_length
from exllamav3_adapters.answer_format.tool_format import Piece, Prose


class JsonCalls:
    """A `CallReader` of `{...}`, of `[{...}, {...}]`, and of objects that commas or semicolons separate.

    With a closing tag, what is no call is prose up to that tag, and what follows a broken call is dropped up to it; the
    opening tag begins anew in both. Without one, the section ends with the last object, and prose begins where there
    is none. `opening` is empty where the object itself began the section.
    """

    def __init__(self, close: str | None, opening: str = "", *, new_call: Callable[[], JsonCall] = JsonCall) -> None:
        self._close = close
        self._is_marked = bool(opening)
        self._tags = tuple(tag for tag in (close, opening) if close is not None and tag)
        # There is no line break in a JSON string: behind one, the closing tag ends a string that never closed.
        self._line_tags = (f"\n{close}",) if close is not None else ()
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
        tag = next((tag for tag in self._tags if text.startswith(tag)), None)
        if tag is not None:
            return self._after_tag(tag, text.removeprefix(tag))
        if any(tag.startswith(text) for tag in self._tags):
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
        at, tag = find_first(text, self._line_tags)
        if tag is None:
            at -= held_length(text, self._line_tags)
        if at:
            pieces += self._call.read(text[:at])
        is_begun, rest = self._call.is_begun, self._call.rest
        self._raw = "" if is_begun else self._raw + text[:at]
        if rest is None and tag is None:
            self._held = text[at:]
            return ""
        unread = (rest or "") + text[at:]
        if rest is not None and not self._call.is_broken:
            self._state = "after"
            return unread
        raw, self._raw = self._raw[: len(self._raw) - len(rest or "")], ""
        if self._close is None:
            pieces += [Prose(raw)] if raw and not self._is_marked else []
            self.rest = raw + unread if self._is_marked else unread
            return ""
        self._state = "dropped" if is_begun else "prose"
        return raw + unread

    def _read_to_close(self, text: str, pieces: list[Piece]) -> str:
        at, tag = find_first(text, self._tags)
        if tag is None:
            at -= held_length(text, self._tags)
            self._held = text[at:]
        if self._state == "prose" and at:
            pieces.append(Prose(text[:at]))
        return self._after_tag(tag, text[at + len(tag) :]) if tag is not None else ""

    def _after_tag(self, tag: str, text: str) -> str:
        if tag == self._close:
            self.rest = text
            return ""
        self._state = "before"
        return text
