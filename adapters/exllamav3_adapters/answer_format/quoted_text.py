"""Strings between quotes, decoded as they arrive."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from exllamav3_adapters.answer_format.text_search import find_first, held_length

_ESCAPE: Final = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8}))"
    r"|(?P<octal>[0-7]{1,3})|N\{(?P<name>[^}\\]{1,80})\}|(?P<sign>.))",
    re.DOTALL,
)
_BEGUN_ESCAPE: Final = re.compile(
    r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-7]{1,2}|N(?:\{[^}\\]{0,80})?"
    r"|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
)
_SIGNS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""} | {
    sign: sign for sign in "\\'\"/"
}


class QuotedText:
    """A string, from behind its opening quote. It ends with `quote`, or before `limit`.

    `escapes`: with those of Python, which JSON's are among. One that is not known is its own text.
    """

    def __init__(self, quote: str, limit: str, *, escapes: bool) -> None:
        self._quote = quote
        self._stops = (quote, limit, "\\") if escapes else (quote, limit)
        self.is_complete = False

    def take(self, text: str) -> tuple[int, str]:
        """How much of the text is read, and what it says; the rest must come again, with more behind it."""
        said: list[str] = []
        taken = 0
        while True:
            rest = text[taken:]
            at, stop = find_first(rest, self._stops)
            if stop is None:
                at -= held_length(rest, self._stops)
            said.append(rest[:at])
            taken += at
            if stop is None:
                break
            if stop != "\\":
                taken += len(stop) if stop == self._quote else 0
                self.is_complete = True
                break
            if _BEGUN_ESCAPE.fullmatch(text, taken):
                break
            escape = _ESCAPE.match(text, taken)
            assert escape is not None
            said.append(_decoded(escape))
            taken = escape.end()
        return taken, "".join(said)


def _decoded(escape: re.Match[str]) -> str:
    match escape.lastgroup, escape.group(escape.lastgroup or 0):
        case "low", low:
            return (bytes.fromhex(escape["high"]) + bytes.fromhex(low)).decode("utf-16-be")
        case (("x" | "u" | "U"), digits):
            return _character(int(digits, 16))
        case "octal", digits:
            return _character(int(digits, 8))
        case "name", name:
            try:
                return unicodedata.lookup(name)
            except KeyError:
                return escape.group()
        case _, sign:
            return _SIGNS.get(sign, escape.group())


def _character(code: int) -> str:
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
