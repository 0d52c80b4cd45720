"""One call that is written as a JSON object: `{"name": "f", "arguments": {...}}`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from exllamav3_adapters.answer_format.json_value import JsonValueEnd
from exllamav3_adapters.answer_format.tool_format import CallArguments, CallBegun, Piece

NAME_KEYS: Final = ("name", "tool_name", "function")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input")


class JsonCall:
    """Reads one object, from its opening brace, which the first piece begins with.

    The arguments are passed on as they are written, as soon as the name is known; arguments that are JSON text in a
    string are unwrapped when they are whole. Other keys are passed over. `is_broken`: it is no such object; what was
    passed on stays, and `rest` begins where it went wrong.
    """

    def __init__(self, accepts: Callable[[str], bool] = lambda name: True) -> None:
        """`accepts` is asked about the name; an object with another one is broken."""
        self._accepts = accepts
        self._step: Callable[[str, list[Piece]], int] = self._take_opening
        self._token = ""  # of a key or of a value that is needed whole
        self._value = JsonValueEnd()
        self._key = ""
        self._has_name = False
        self._has_arguments = False
        self._nested = 0  # levels of a key that holds the call itself
        self._waiting: str | None = None  # arguments that came before the name
        self.rest: str | None = None
        self.is_broken = False

    def read(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text and self.rest is None:
            taken = self._step(text, pieces)
            text = text[taken:]
            if self._step == self._done:
                self.rest = text
        return pieces

    @property
    def has_name(self) -> bool:
        return self._has_name

    def end(self) -> list[Piece]:
        """The text ends here. A name without arguments has none yet."""
        if self._step == self._take_value and self._key in ARGUMENT_KEYS and self._token and self._has_name:
            return [CallArguments(self._token)]  # a string that was cut
        return []

    # Each step takes some of the text, never none of it unless it changes the step, and returns how much.

    def _take_opening(self, text: str, pieces: list[Piece]) -> int:
        assert text[0] == "{"
        self._step = self._take_key
        return 1

    def _take_key(self, text: str, pieces: list[Piece]) -> int:
        if not self._token:
            blank = len(text) - len(text.lstrip(" \t\r\n,"))
            if blank:
                return blank
            if text[0] == "}":
                self._finish(pieces)
                return 1
            if text[0] != '"':
                return self._break()
            self._value = JsonValueEnd()
        taken = self._value.take(text)
        self._token += text[:taken]
        if self._value.is_complete:
            self._key, self._token = _loaded_text(self._token), ""
            self._step = self._take_colon
        return taken

    def _take_colon(self, text: str, pieces: list[Piece]) -> int:
        blank = len(text) - len(text.lstrip())
        if blank:
            return blank
        if text[0] != ":":
            return self._break()
        self._step = self._take_value_start
        return 1

    def _take_value_start(self, text: str, pieces: list[Piece]) -> int:
        blank = len(text) - len(text.lstrip())
        if blank:
            return blank
        self._value = JsonValueEnd()
        streams = self._key in ARGUMENT_KEYS and text[0] == "{" and not self._has_arguments
        if self._key in NAME_KEYS and text[0] == "{":
            # OpenAI's own nesting: {"function": {"name": ..., "arguments": ...}}; its keys are as good as these.
            self._step = self._take_key
            self._nested += 1
            return 1
        self._step = self._take_arguments if streams else self._take_value
        if streams:
            self._has_arguments = True
            self._waiting = None if self._has_name else ""
        return 0

    def _take_arguments(self, text: str, pieces: list[Piece]) -> int:
        taken = self._value.take(text)
        if self._waiting is None:
            if taken:
                pieces.append(CallArguments(text[:taken]))
        else:
            self._waiting += text[:taken]
        if self._value.is_broken:
            return taken + self._break()
        if self._value.is_complete:
            self._step = self._take_key
        return taken

    def _take_value(self, text: str, pieces: list[Piece]) -> int:
        taken = self._value.take(text)
        self._token += text[:taken]
        if self._value.is_broken:
            return taken + self._break()
        if not self._value.is_complete:
            return taken
        value, self._token = self._token, ""
        self._step = self._take_key
        if self._key in NAME_KEYS and not self._has_name:
            name = _loaded_text(value)
            if not name or not self._accepts(name):
                return taken + self._break()
            self._has_name = True
            pieces.append(CallBegun(name))
            if self._waiting:
                pieces.append(CallArguments(self._waiting))
                self._waiting = None
        elif self._key in ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            text_ = _loaded_text(value) if value.startswith('"') else "" if value == "null" else value
            if self._has_name:
                pieces.append(CallArguments(text_ or "{}"))
            else:
                self._waiting = text_ or "{}"
        return taken

    def _finish(self, pieces: list[Piece]) -> None:
        if self._nested:
            self._nested -= 1
            return
        if self._has_name and not self._has_arguments:
            pieces.append(CallArguments("{}"))
        self.is_broken = not self._has_name
        self._step = self._done

    def _break(self) -> int:
        self.is_broken = True
        self._step = self._done
        return 0

    def _done(self, text: str, pieces: list[Piece]) -> int:
        raise AssertionError("nothing is read after the end")


def _loaded_text(token: str) -> str:
    """A JSON string's text; empty where it is none."""
    try:
        value = json.loads(token, strict=False)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
