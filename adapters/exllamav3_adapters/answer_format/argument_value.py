"""Values of arguments that a form writes as plain text: turned into JSON by what the tool's schema says of them."""

from __future__ import annotations

import json
from typing import NoReturn

from exllamav3_adapters.answer_format.arguments_object import in_quotes, json_text
from exllamav3_adapters.answer_format.parameter_schema import STRING, Types, value_types
from exllamav3_adapters.answer_format.python_literal import python_literal_as_json

_NULLABLE = STRING | {"null"}


class TextArgument:
    """One value, from behind its opening tag to before its closing one. Each method returns the JSON that is certain.

    A string's text is passed on as it comes. The rest waits for its end, then `as_json` decides.
    """

    def __init__(self, types: Types | None, *, in_lines: bool) -> None:
        """`types`: None where the schema says nothing. `in_lines`: the template puts a line break before and after
        the value, which is none of it."""
        self._types = types
        self._held: list[str] = []
        self._is_string = types == STRING
        self._is_begun = False  # the opening quote is written
        self._drops_break = in_lines
        self._in_lines = in_lines
        self._tail = ""  # a line break that may be the last one

    def read(self, text: str) -> str:
        if self._drops_break and text:
            self._drops_break = False
            text = text.removeprefix("\n")
        if not text:
            return ""
        text = self._tail + text
        self._tail = "\n" if self._in_lines and text.endswith("\n") else ""
        return self._take(text.removesuffix(self._tail))

    def end(self) -> str:
        if self._is_string:
            return '"' if self._is_begun else '""'
        return as_json("".join(self._held), self._types)

    def _take(self, text: str) -> str:
        if not self._is_string:
            self._held.append(text)
            if self._types != _NULLABLE or _may_be_null("".join(self._held)):
                return ""
            text, self._is_string = "".join(self._held), True
        if not text:
            return ""
        quote, self._is_begun = "" if self._is_begun else '"', True
        return quote + in_quotes(text)


def _may_be_null(text: str) -> bool:
    return any(word.startswith(text.strip()) for word in ("null", "None"))


def as_json(text: str, types: Types | None) -> str:
    """A whole value as JSON. Where the schema names types, JSON or a Python literal of one of them; where it says
    nothing, JSON of any type; all else is a string, as it stands.

    Strings are written without quotes by these forms, so text in quotes is a string that has them.
    """
    if types == STRING:
        return json_text(text)
    stripped = text.strip()
    if _fits(stripped, types):
        return stripped
    # Some templates write `True`, and lists and objects, as Python does.
    literal = python_literal_as_json(stripped) if types is not None else None
    return literal if literal is not None and _fits(literal, types) else json_text(text)


def _fits(text: str, types: Types | None) -> bool:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, str) and (types is None or not types.isdisjoint(value_types(value)))


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)
