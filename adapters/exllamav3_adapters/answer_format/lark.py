"""Pieces of a grammar in LLGuidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def literal(text: str) -> str:
    """Exactly this text. `answer_grammar.py` replaces literals that hold a special token of the model."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Mapping[str, Any]) -> str:
    """A JSON value that is valid against the schema."""
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


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
