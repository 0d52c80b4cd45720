"""Python literals, as some models and templates write values."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any, Final

_WORDS: Final = {"true": True, "false": False, "null": None}


def python_literal_as_json(text: str) -> str | None:
    """The literal as JSON; JSON's own words may stand in it. None: it is none, or nothing that JSON can hold."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(text.strip(), mode="eval")
        result = json.dumps(_value(tree.body), ensure_ascii=False, allow_nan=False)
        result.encode()  # no half of a surrogate pair
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return result


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise ValueError("not a literal")


def _key(node: ast.expr | None) -> str:
    key = _value(node) if node is not None else None
    if isinstance(key, str):
        return key
    if isinstance(key, (bool, int, float)):
        return json.dumps(key)
    raise ValueError("not a key of a JSON object")
