"""A client's JSON Schema as LLGuidance enforces it exactly.

LLGuidance refuses what it cannot enforce, with these exceptions (llguidance 1.9.1), which are mended here:

- it does not keep apart keys that a schema does not list, so that `minProperties` may be met by one key written twice;
- a pattern's negated class that leaves out the quote or the backslash (`[^"]`) still takes it, unless the class leaves
  out control characters too;
- it refuses keywords that demand nothing (`uniqueItems: false`), and formats that JSON Schema does not know, which are
  remarks by its rules.

White space is bounded, since a small model can go on with it for ever: JSON is written on one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

ONE_LINE: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""LLGuidance's options: what stands between values, as regular expressions."""

_VALUES: Final = frozenset(("const", "enum", "default", "examples", "example"))
"""Keywords that hold values, no schemas."""
_NAMED: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords that hold schemas by a name of the client's."""
_ENFORCED: Final = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_REFUSED: Final = ("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template")
_FORMATS: Final = frozenset((*_ENFORCED, *_REFUSED, "json-pointer", "relative-json-pointer", "regex"))
"""All of JSON Schema's. LLGuidance refuses those that it cannot enforce."""
_CLASS: Final = re.compile(r"\\.|\[\^((?:\\.|[^\]\\])+)\]", re.DOTALL)


class SchemaFault(Exception):
    """What of a schema cannot be enforced. `path` leads to it through the schema's keys; empty: the schema itself."""

    def __init__(self, path: tuple[str, ...], fault: str) -> None:
        super().__init__(f"{'.'.join(path)}: {fault}" if path else fault)
        self.path = path
        self.fault = fault


def enforced(schema: object) -> dict[str, Any]:
    """The schema for `%json`. Raises `SchemaFault`."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise SchemaFault((), "a schema must be an object")
    try:
        return {**_subschema(schema, ()), "x-guidance": ONE_LINE}
    except RecursionError:
        raise SchemaFault((), "it is nested too deeply") from None


def subschemas(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schema and all schemas in it, with the keys that lead there."""
    yield path, schema
    for key, value in schema.items():
        if key in _VALUES:
            continue
        if isinstance(value, list):
            inside = {(*path, key, str(number)): each for number, each in enumerate(value)}
        elif key in _NAMED and isinstance(value, Mapping):
            inside = {(*path, key, name): each for name, each in value.items()}
        else:
            inside = {(*path, key): value}
        for path_inside, each in inside.items():
            if isinstance(each, Mapping):
                yield from subschemas(each, path_inside)


def _subschema(schema: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    _check_min_properties(schema, path)
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VALUES:
            found[key] = value
        elif key == "pattern" and isinstance(value, str):
            found[key] = _mended(value)
        elif key == "patternProperties" and isinstance(value, Mapping):
            found[key] = {_mended(pattern): each for pattern, each in _by_name(value, (*path, key)).items()}
        elif key in _NAMED and isinstance(value, Mapping):
            found[key] = _by_name(value, (*path, key))
        elif not _demands_nothing(key, value):
            found[key] = _inside(value, (*path, key))
    found.pop("x-guidance", None)
    return found


def _by_name(schemas: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    return {name: _inside(schema, (*path, name)) for name, schema in schemas.items()}


def _inside(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return _subschema(value, path)
    if isinstance(value, list):
        return [_inside(each, (*path, str(number))) for number, each in enumerate(value)]
    return value


def _demands_nothing(key: str, value: Any) -> bool:
    match key:
        case "uniqueItems":
            return value is False
        case "propertyNames":
            return value is True or value in ({}, {"type": "string"})
        case "format":
            return isinstance(value, str) and value not in _FORMATS
        case _:
            return False


def _check_min_properties(schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
    least, required = schema.get("minProperties"), schema.get("required")
    num_required = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int | float) and least - num_required > 1:
        raise SchemaFault(
            (*path, "minProperties"),
            "that several keys differ cannot be enforced; name them in `required`, or take minProperties down",
        )


def _mended(pattern: str) -> str:
    """A negated class that leaves out quote or backslash leaves out control characters as well."""
    return _CLASS.sub(lambda found: _mended_class(found[0], found[1]), pattern)


def _mended_class(text: str, members: str | None) -> str:
    if members is None:
        return text
    try:
        takes_both = bool(re.match(text, '"') and re.match(text, "\\"))
    except re.error:  # syntax that Python has not
        takes_both = False
    return text if takes_both else f"[^\\x00-\\x1f{members}]"
