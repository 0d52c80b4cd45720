"""One call that is written as a JSON object: `{"name": "f", "arguments": {...}}`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Final

from exllamav3_adapters.answer_format.json_value import JsonValueEnd
from exllamav3_adapters.answer_format.tool_format import CallArguments, CallBegun, Piece

NAME_KEYS: Final = ("name", "tool_name", "function")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input")


_OTHER_KEYS: Final = ("type", "id", "index", "call_id", "tool_call_id")


class JsonCall:
    """Reads one object, from its opening brace, which the first piece begins with.

    The arguments are passed on as they are written, as soon as the name is known; arguments that are JSON text in a
    string are unwrapped when they are whole. Other keys are passed over. `is_broken`: it is no such object; what was
    passed on stays, and `rest` begins where it went wrong.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        """With `names`, the object may as well be an answer: it is broken as soon as it cannot be a call to one of
        them any more, and the call begins with its arguments."""
        self._names = None if names is None else tuple(f'"{name}"' for name in names)
        self._keys = tuple(f'"{key}"' for key in (*NAME_KEYS, *ARGUMENT_KEYS, *_OTHER_KEYS))
        self._step: Callable[[str, list[Piece]], int] = self._take_opening
        self._token = ""  # of a key or of a value that is needed whole
        self._value = JsonValueEnd()
        self._key = ""
        self._name = ""
        self._has_arguments = False
        self._nested = 0  # levels of a key that holds the call itself
        self._waiting: str | None = None  # arguments that came before the name
        self.is_begun = False
        self._unread = ""
        self.rest: str | None = None
        self.is_broken = False

    def read(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text and self.rest is None:
            taken = self._step(text, pieces)
            text = text[taken:]
            if self._step == self._done:
                self.rest = self._unread + text
        return pieces

    def end(self) -> list[Piece]:
        """The text ends here. A name without arguments has none yet."""
        pieces: list[Piece] = []
        if self._name:
            self._begin(pieces)
        if self.is_begun and self._step == self._take_value and self._key in ARGUMENT_KEYS:
            pieces.append(CallArguments(_text_of_cut(self._token)))
        return pieces

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
        if self._names is not None and not _may_become(self._token, self._keys):
            return taken + self._break(unread=self._token)
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
            self._waiting = None if self._name else ""
            if self._name:
                self._begin(pieces)
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
        is_name = self._key in NAME_KEYS and not self._name and self._names is not None
        if self._value.is_broken or (is_name and not _may_become(self._token, self._names or ())):
            return taken + self._break(unread=self._token)
        if not self._value.is_complete:
            return taken
        value, self._token = self._token, ""
        self._step = self._take_key
        if self._key in NAME_KEYS and not self._name:
            self._name = _loaded_text(value)
            if not self._name:
                return taken + self._break()
            if self._names is None or self._waiting is not None:
                self._begin(pieces)
        elif self._key in ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            self._waiting = _arguments_of(value)
            if self._name:
                self._begin(pieces)
        return taken

    def _begin(self, pieces: list[Piece]) -> None:
        """Tells of the call, and of arguments that are known."""
        if not self.is_begun:
            self.is_begun = True
            pieces.append(CallBegun(self._name))
        if self._waiting is not None:
            pieces.append(CallArguments(self._waiting))
            self._waiting = None

    def _finish(self, pieces: list[Piece]) -> None:
        if self._nested:
            self._nested -= 1
            return
        self._step = self._done
        self.is_broken = not self._name
        if self._name:
            self._waiting = self._waiting if self._has_arguments else "{}"
            self._begin(pieces)

    def _break(self, *, unread: str = "") -> int:
        """`unread` was taken and goes back to the text."""
        self._unread = unread
        self.is_broken = True
        self._step = self._done
        return 0

    def _done(self, text: str, pieces: list[Piece]) -> int:
        raise AssertionError("nothing is read after the end")


def _may_become(token: str, whole: Collection[str]) -> bool:
    return any(text.startswith(token) for text in whole)


def _arguments_of(value: str) -> str:
    """The object that a value other than an object stands for."""
    text = _loaded_text(value) if value.startswith('"') else "" if value == "null" else value
    return text or "{}"


def _text_of_cut(token: str) -> str:
    """What there is of a JSON string's text; its last escape may be cut."""
    if not token.startswith('"'):
        return token
    shorter = (token[: len(token) - cut] for cut in range(min(len(token), 6)))
    return next(filter(None, (_loaded_text(text + '"') for text in shorter)), "")


def _loaded_text(token: str) -> str:
    """A JSON string's text; empty where it is none."""
    try:
        value = json.loads(token, strict=False)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
