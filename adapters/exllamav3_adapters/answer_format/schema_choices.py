"""What a parameter may be, as alternatives that a grammar can write one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from exllamav3_adapters.answer_format.parameter_schema import ALL_TYPES, STRING, ParameterSchema, Schema


@dataclass(frozen=True, slots=True)
class TextChoice:
    """A string; the schema limits its length or its form, or does not. Or anything at all."""

    schema: Schema
    is_string: bool = True

    @property
    def is_free(self) -> bool:
        return self.schema.keys().isdisjoint(("minLength", "maxLength", "pattern", "format"))


@dataclass(frozen=True, slots=True)
class FixedChoice:
    """Exactly this value."""

    value: Any


@dataclass(frozen=True, slots=True)
class JsonChoice:
    """A value of other types, by its schema, which holds its definitions."""

    schema: Schema
    types: tuple[str, ...]


Choice: TypeAlias = TextChoice | FixedChoice | JsonChoice
_MAX_DEPTH = 16
_COMPOUND = {"object": {"properties", "required"}, "array": {"items", "prefixItems"}}
"""Words that tell the type of a schema that does not name it."""


def choices(parameters: ParameterSchema, schema: object, depth: int = _MAX_DEPTH) -> Iterator[Choice]:
    """The alternatives of one parameter's schema. One that allows everything is text."""
    resolved = _merged(parameters, parameters.resolved(schema))
    types = parameters.types_of(resolved)
    if "const" in resolved:
        yield FixedChoice(resolved["const"])
    elif isinstance(values := resolved.get("enum"), (list, tuple)) and values:
        yield from map(FixedChoice, values)
    elif (nested := resolved.get("anyOf") or resolved.get("oneOf")) and isinstance(nested, (list, tuple)) and depth:
        for choice in nested:
            yield from choices(parameters, choice, depth - 1)
    elif types == ALL_TYPES:
        compound = tuple(kind for kind, words in _COMPOUND.items() if not words.isdisjoint(resolved))
        if compound:
            yield JsonChoice({**parameters.standalone(resolved), "type": list(compound)}, compound)
        else:
            yield TextChoice({}, is_string=False)
    else:
        if types >= STRING:
            yield TextChoice(parameters.standalone(resolved))
        if others := tuple(sorted(types - STRING)):
            yield JsonChoice({**parameters.standalone(resolved), "type": list(others)}, others)


def _merged(parameters: ParameterSchema, schema: Schema) -> Schema:
    """The schema and the parts of its `allOf` in one."""
    parts = schema.get("allOf")
    if not isinstance(parts, (list, tuple)):
        return schema
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        merged = {**parameters.resolved(part), **merged}
    return merged
