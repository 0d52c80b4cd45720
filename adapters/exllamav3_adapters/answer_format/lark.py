"""Pieces of a grammar in LLGuidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from exllamav3_adapters.answer_format.json_schema import enforced

_JSON: Final = "%json "
_TERMINAL: Final = re.compile(r'%json |"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/', re.DOTALL)


def literal(text: str) -> str:
    """Exactly this text. `with_special_tokens` replaces what of it is a special token of the model."""
    return json.dumps(text, ensure_ascii=False)


def regex(pattern: str) -> str:
    """Text that the whole of a regular expression matches (Rust's syntax)."""
    escaped = re.sub(
        r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), pattern, flags=re.DOTALL
    )
    return f"/{escaped}/"


def json_value(schema: Mapping[str, Any]) -> str:
    """A JSON value that is valid against the schema. Raises `SchemaFault`."""
    return f"{_JSON}{json.dumps(enforced(schema), ensure_ascii=False)}"


def with_special_tokens(rules: str, special_tokens: Mapping[str, int]) -> str:
    """Rules whose literals name special tokens as such: text alone never matches one. JSON Schemas stay as they are."""
    if not special_tokens:
        return rules
    pieces = ((_tokens_and_text(piece, special_tokens) if piece[0] == '"' else piece) for piece in _pieces(rules))
    return "".join(pieces)


def json_schemas(rules: str) -> list[Any]:
    """Those of all `%json`."""
    return [json.loads(piece.removeprefix(_JSON)) for piece in _pieces(rules) if piece.startswith(_JSON)]


def _pieces(rules: str) -> Iterator[str]:
    """The text, cut before and behind each literal, pattern and schema."""
    at = 0
    while found := _TERMINAL.search(rules, at):
        if found.start() > at:
            yield rules[at : found.start()]
        at = found.end()
        if found[0] == _JSON:
            _, at = json.JSONDecoder().raw_decode(rules, at)
        yield rules[found.start() : at]
    if at < len(rules):
        yield rules[at:]


def _tokens_and_text(quoted: str, special_tokens: Mapping[str, int]) -> str:
    text: str = json.loads(quoted)
    longest_first = sorted((token for token in special_tokens if token in text), key=len, reverse=True)
    if not longest_first:
        return quoted
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    found = [f"<[{special_tokens[piece]}]>" if at % 2 else literal(piece) for at, piece in enumerate(pieces) if piece]
    return f"({' '.join(found)})"


def section_of_calls(calls: Sequence[str], *, before: str, between: str, after: str, parallel: bool) -> str:
    """The rules of `ToolFormat.grammar`. `calls` has one expression a tool; the texts stand around the calls."""
    more = f" ({literal(between)} call_any)*" if between else " call_any*"
    parts = [literal(before)] * bool(before) + ["call_any" + more * parallel] + [literal(after)] * bool(after)
    rules = [
        f"calls: {' '.join(parts)}",
        f"call_any: {' | '.join(f'call_{number}' for number in range(len(calls)))}",
        *(f"call_{number}: {call}" for number, call in enumerate(calls)),
    ]
    return "\n".join(rules)
