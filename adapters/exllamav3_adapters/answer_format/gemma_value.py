"""Values as Gemma 4 writes them: JSON with its own quotes, and keys without any."""

from __future__ import annotations

import json
import re
from typing import Any, Final

QUOTE: Final = '<|"|>'
_WORDS: Final = {"null": None, "None": None, "true": True, "True": True, "false": False, "False": False}
_BLANK: Final = re.compile(r"[ \t\r\n,]*")
_BARE: Final = re.compile(r"[^,\[\]{}]*")
KEY: Final = re.compile(r'\s*(?:<\|"\|>((?:(?!<\|"\|>).)*)<\|"\|>|"([^"]*)"|([^\s,:{}\[\]"<]+))\s*:', re.DOTALL)
BEGUN_KEY: Final = re.compile(
    r'\s*(?:<(?:\|(?:"\|?)?)?|<\|"\|>(?:(?!<\|"\|>).)*(?:<\|"\|>)?|"[^"]*"?|[^\s,:{}\[\]"<]*)\s*', re.DOTALL
)


def gemma_value_as_json(text: str) -> str | None:
    """A whole value. None: it is none."""
    try:
        value, end = _value(text, 0)
        result = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return result if not text[end:].strip() else None


def _value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    at = _next(text, at)
    match text[at : at + 1]:
        case "{":
            return _object(text, at + 1)
        case "[":
            return _list(text, at + 1)
        case '"':
            return json.JSONDecoder(strict=False).raw_decode(text, at)
    if text.startswith(QUOTE, at):
        begin = at + len(QUOTE)
        end = text.index(QUOTE, begin)
        return text[begin:end], end + len(QUOTE)
    found = _BARE.match(text, at)
    assert found is not None
    word = found.group().strip()
    if not word:
        raise ValueError("no value")
    return _WORDS[word] if word in _WORDS else _number(word), found.end()


def _number(word: str) -> int | float:
    number = json.loads(word)
    if not isinstance(number, (int, float)):
        raise ValueError("no number")
    return number


def _list(text: str, at: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while text[(at := _next(text, at)) : at + 1] != "]":
        item, at = _value(text, at)
        items.append(item)
    return items, at + 1


def _object(text: str, at: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    while text[(at := _next(text, at)) : at + 1] != "}":
        key = KEY.match(text, at)
        if key is None:
            raise ValueError("no key")
        name = next((group for group in key.groups() if group is not None), "")
        found[name], at = _value(text, key.end())
    return found, at + 1


def _next(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()
