"""Calls as a name, some markup of the form's own, and then the arguments as a JSON object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from exllamav3_adapters.answer_format.json_value import JsonValueEnd
from exllamav3_adapters.answer_format.text_search import find_first, held_length
from exllamav3_adapters.answer_format.tool_format import CallArguments, CallBegun, Piece, Prose

_NAME: Final = re.compile(r"[^\s<>{}\[\]\"']+")


class HeadedForm(Protocol):
    """The tags of such calls, and how their names are written."""

    @property
    def begin(self) -> str:
        """Begins a call."""

    @property
    def call_end(self) -> str | None: ...

    @property
    def section_end(self) -> str | None:
        """None: a section is one call, and ends with its arguments."""

    @property
    def tags(self) -> tuple[str, ...]:
        """These, and those within a call."""

    def split(self, header: str, *, is_whole: bool) -> tuple[str, str] | None:
        """The name, and what stands where the arguments should begin. None: the name is not there, or may go on.

        `header` is what came between `begin` and the arguments' brace. `is_whole`: there is no more of it.
        """


class HeadedCalls:
    """A `CallReader`.

    What stands where a header should, and is none, is prose up to the next tag. What follows the arguments up to the
    next tag is dropped.
    """

    def __init__(self, form: HeadedForm, opening: str) -> None:
        self._form = form
        self._tags = tuple(tag for tag in (form.begin, form.call_end, form.section_end) if tag is not None)
        self._is_single = form.section_end is None
        self._state: Literal["between", "header", "arguments", "tail", "prose"] = "between"
        if opening == form.begin:
            self._state = "header"
        self._held = ""
        self._value = JsonValueEnd()
        self.rest: str | None = None

    def read(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        text, self._held = self._held + text, ""
        while text and self.rest is None:
            match self._state:
                case "between":
                    text = self._read_between(text)
                case "header":
                    text = self._read_header(text, pieces)
                case "arguments":
                    text = self._read_arguments(text, pieces)
                case "tail" | "prose":
                    text = self._read_to_tag(text, pieces)
        return pieces

    def end(self) -> list[Piece]:
        if self._state != "header" or (found := self._split(self._held, is_whole=False)) is None:
            return []
        return [CallBegun(found[0])]

    # Each of these takes what its state can of the text and returns the rest for the next one.

    def _read_between(self, text: str) -> str:
        text = text.lstrip(" \t\r\n,")
        if any(tag.startswith(text) and tag != text for tag in self._form.tags):
            self._held = text
            return ""
        self._state = "prose"
        return text

    def _read_header(self, text: str, pieces: list[Piece]) -> str:
        at, tag = find_first(text, (*self._tags, "{"))
        if self._is_single and re.search(r"\S\s+[^\s\[]", text[:at]):
            self.rest = text  # words
            return ""
        if tag is None:
            self._held = text
            return ""
        header, found = text[:at], self._split(text[:at], is_whole=True)
        if found is None:
            pieces += self._prose(header)
            self._state = "prose"
            return text[at:]
        pieces.append(CallBegun(found[0]))
        if tag == "{":
            self._state, self._value = "arguments", JsonValueEnd()
            return text[at:]
        pieces.append(CallArguments(found[1] or "{}"))
        self._state = "tail"
        return text[at:]

    def _read_arguments(self, text: str, pieces: list[Piece]) -> str:
        taken = self._value.take(text)
        if taken:
            pieces.append(CallArguments(text[:taken]))
        if self._value.is_complete or self._value.is_broken:
            self._state = "tail"
        if self._state == "tail" and self._is_single:
            self.rest = text[taken:]
        return text[taken:]

    def _read_to_tag(self, text: str, pieces: list[Piece]) -> str:
        if self._is_single:
            self.rest = text
            return ""
        at, tag = find_first(text, self._form.tags)
        if tag is None:
            at -= held_length(text, self._form.tags)
            self._held = text[at:]
        if self._state == "prose":
            pieces += self._prose(text[:at])
        if tag is None:
            return ""
        after = text[at + len(tag) :]
        if tag == self._form.section_end:
            self.rest = after
            return ""
        if tag == self._form.begin:
            self._state = "header"
        elif tag == self._form.call_end:
            self._state = "between"
        return after

    def _split(self, header: str, *, is_whole: bool) -> tuple[str, str] | None:
        found = self._form.split(header, is_whole=is_whole)
        return found if found is not None and _NAME.fullmatch(found[0]) else None

    def _prose(self, text: str) -> Sequence[Piece]:
        for tag in self._form.tags:
            text = text.replace(tag, "")
        return [Prose(text)] if text else []
