"""Grammar of strings that stand without quotes and end with a text of the form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from exllamav3_adapters.answer_format.lark import literal
from exllamav3_adapters.answer_format.parameter_schema import Schema

ANYTHING: Final = "(?s:.*)"
_DATE: Final = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_FORMATS: Final = {
    "date": _DATE,
    "date-time": _DATE + "T" + _TIME,
    "time": _TIME,
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": r"[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+)*@[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*(\.[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*)+",
    "ipv4": r"(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])){3}",
}
"""What all readers of a format agree on; other formats are free text, as JSON Schema allows. Days after the 28th are
left out, since a grammar cannot count them by the month."""


def text_rules(name: str, schema: Schema, closing: str, *, before: str = "") -> list[str]:
    """Rules of which the first, `name`, is a string that is valid against the schema, then `before`, then `closing`.

    The text ends with the first `closing`, as a reader takes it. Two ways lead there, because a model's tokenizer may
    have `closing` as a special token, which no pattern matches: as the end of a pattern, and as a literal behind one.
    """
    text = name.upper()
    return [
        f"{name}: {name}_closed | {text} {literal(closing)}",
        f"{name}_closed[suffix=/{escaped(closing)}/]: {text}",
        f"{text}: {_pattern(schema, closing, escaped(before))}",
    ]


def escaped(text: str) -> str:
    """A pattern of exactly this text."""
    return _in_slashes(re.escape(text))


def _pattern(schema: Schema, closing: str, before: str) -> str:
    shortest, longest = _length(schema.get("minLength")), _length(schema.get("maxLength"))
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        return f"/({'|'.join(map(_found_anywhere, _alternatives(pattern)))}){before}/"
    if (known := _FORMATS.get(str(schema.get("format")))) is not None:
        return f"/({_in_slashes(known)}){before}/"
    if longest is not None:
        # Counting and looking for the closing text at once would be more states than a lexer takes.
        return f"/[^{re.escape(closing[0])}]{{{shortest or 0},{longest}}}{before}/"
    free = f"(?s:.{{{shortest},}})" if shortest else ANYTHING
    return f"/{free}{before}/ & ~/{ANYTHING}{escaped(closing)}{ANYTHING}/"


def _length(limit: Any) -> int | None:
    return int(limit) if isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit >= 0 else None


def _found_anywhere(pattern: str) -> str:
    """JSON Schema looks for a pattern in the text; a grammar's pattern is all of it."""
    starts, ends = pattern.startswith("^"), re.search(r"(?<!\\)(\\\\)*\$$", pattern) is not None
    inner = pattern[starts : len(pattern) - ends]
    return f"{'' if starts else ANYTHING}({_in_slashes(inner)}){'' if ends else ANYTHING}"


def _alternatives(pattern: str) -> Iterator[str]:
    """What stands between the bars outside of all brackets."""
    begin, depth, in_class = 0, 0, False
    for match in re.finditer(r"\\.|[\[\]()|]", pattern, re.DOTALL):
        sign = match.group()
        if sign == "]":
            in_class = False
        elif in_class or len(sign) > 1:
            continue
        elif sign == "[":
            in_class = True
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif depth == 0:
            yield pattern[begin : match.start()]
            begin = match.end()
    yield pattern[begin:]


def _in_slashes(pattern: str) -> str:
    """A pattern as it is written between slashes on one line."""
    signs = {"/": r"\/", "\\\n": r"\n", "\n": r"\n", "\\\r": r"\r", "\r": r"\r"}
    return re.sub(r"\\.|[/\n\r]", lambda match: signs.get(match.group(), match.group()), pattern, flags=re.DOTALL)
