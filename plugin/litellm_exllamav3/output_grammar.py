"""What the output must match, from `response_format` and the plain keys by which engines' clients ask for it.

The grammar itself is compiled in the engine, which refuses one that is wrong and says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from exllamav3_adapters.contract import Grammar
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.json_values import json_kind

_ANY_OBJECT: Final = '{"type":"object"}'
MOST_CHOICES: Final = 1000
MOST_CHARACTERS: Final = 256 * 1024
"""Of a grammar. Compiling can take time by the square of its length: 0.7 s for this many, 5 s for twice as many."""


def read_grammar(params: Mapping[str, Any]) -> Grammar | None:
    """None: the output is free. Raises `InvalidRequest` for a malformed constraint, and for two of them."""
    grammars = {name: read(name, params[name]) for name, read in CONSTRAINTS.items() if name in params}
    asked = {name: grammar for name, grammar in grammars.items() if grammar is not None}
    if len(asked) > 1:
        first, second, *_ = asked
        raise InvalidRequest(f"{first} and {second} both constrain the output; send one of them.", second)
    for name, grammar in asked.items():
        if len(grammar.source) > MOST_CHARACTERS:
            raise InvalidRequest(
                f"{name} may hold at most {MOST_CHARACTERS} characters; it holds {len(grammar.source)}.", name
            )
    return next(iter(asked.values()), None)


def constraint_name(params: Mapping[str, Any]) -> str:
    """The client's own name for the constraint that `read_grammar` found."""
    return next(name for name, read in CONSTRAINTS.items() if name in params and read(name, params[name]) is not None)


def _response_format(name: str, value: Any) -> Grammar | None:
    if isinstance(value, type) and hasattr(value, "model_json_schema"):  # a pydantic model, from a library call
        return _json_schema(name, value.model_json_schema())
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be an object with a type, not {json_kind(value)}.", name)
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            # llama.cpp's and vLLM's clients put a schema beside it.
            schema = value.get("schema")
            return Grammar(kind="json_schema", source=_ANY_OBJECT) if schema is None else _json_schema(name, schema)
        case "json_schema":
            outer = value.get("json_schema")
            schema = outer.get("schema") if isinstance(outer, Mapping) else None
            if schema is None:
                raise InvalidRequest(
                    f'{name}.json_schema must be {{"name": ..., "schema": ...}}; the schema is missing.',
                    f"{name}.json_schema.schema",
                )
            return _json_schema(f"{name}.json_schema.schema", schema)
        case _:
            raise InvalidRequest(f"{name}.type must be one of text, json_object, json_schema.", f"{name}.type")


def _json_schema(name: str, value: Any) -> Grammar:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"{name} must be a JSON schema; the string is no JSON.", name) from None
    if not isinstance(value, Mapping | bool):
        raise InvalidRequest(f"{name} must be a JSON schema: an object, not {json_kind(value)}.", name)
    try:
        return Grammar(kind="json_schema", source=json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        raise InvalidRequest(f"{name} cannot be written as JSON: NaN, Infinity, or nested too deeply.", name) from None


def _regex(name: str, value: Any) -> Grammar:
    return Grammar(kind="regex", source=_text(name, value))


def _lark(name: str, value: Any) -> Grammar:
    return Grammar(kind="lark", source=_text(name, value))


def _choice(name: str, value: Any) -> Grammar:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(text, str) and text for text in value):
        raise InvalidRequest(f"{name} must be a list of texts, at least one and none of them empty.", name)
    if len(value) > MOST_CHOICES:
        raise InvalidRequest(f"{name} may hold at most {MOST_CHOICES} texts; it holds {len(value)}.", name)
    # Lark's strings are JSON's.
    return Grammar(kind="lark", source="start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value))


def _structured_outputs(name: str, value: Any) -> Grammar | None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be an object, not {json_kind(value)}.", name)
    asked = [key for key, constraint in value.items() if constraint is not None]
    if len(asked) != 1 or asked[0] not in _STRUCTURED_OUTPUTS:
        raise InvalidRequest(f"{name} must hold one of {', '.join(_STRUCTURED_OUTPUTS)}, and nothing else.", name)
    key = asked[0]
    return _STRUCTURED_OUTPUTS[key](f"{name}.{key}", value[key])


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} must be a text that is not empty, not {json_kind(value)}.", name)
    return value


_STRUCTURED_OUTPUTS: Final[Mapping[str, Callable[[str, Any], Grammar]]] = {
    "json": _json_schema,
    "regex": _regex,
    "grammar": _lark,
    "choice": _choice,
}
"""vLLM's names within its later `structured_outputs`."""

CONSTRAINTS: Final[Mapping[str, Callable[[str, Any], Grammar | None]]] = {
    "response_format": _response_format,
    "json_schema": _json_schema,
    "guided_json": _json_schema,
    "regex": _regex,
    "regex_pattern": _regex,
    "guided_regex": _regex,
    "grammar": _lark,
    "grammar_string": _lark,
    "guided_grammar": _lark,
    "guided_choice": _choice,
    "structured_outputs": _structured_outputs,
}
"""Parameter -> how it is read. The plain keys are llama.cpp's, TabbyAPI's and vLLM's."""
