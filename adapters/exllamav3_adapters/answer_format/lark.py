"""Pieces of a grammar in LLGuidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def literal(text: str) -> str:
    """Exactly this text. `answer_grammar.py` replaces literals that hold a special token of the model."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Mapping[str, Any]) -> str:
    """A JSON value that is valid against the schema."""
    return f"%json {json.dumps(schema, ensure_ascii=False)}"
