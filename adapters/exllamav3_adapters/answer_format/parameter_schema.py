"""What a tool's schema says of its parameters, for forms that write each of them by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from exllamav3_adapters.answer_format.tool_format import tool_parameters
from exllamav3_adapters.contract import Tool

Schema: TypeAlias = Mapping[str, Any]
Types: TypeAlias = frozenset[str]
"""Names of JSON Schema's types."""

STRING: Types = frozenset({"string"})
ALL_TYPES: Types = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_MAX_DEPTH = 32  # of references and combinations; a schema may refer to itself


class ParameterSchema:
    """The parameters of one tool. `None` for the tool: nothing is known of any.

    A schema that is not well formed says nothing, here; whoever enforces it complains.
    """

    def __init__(self, tool: Tool | None) -> None:
        root = tool_parameters(tool) if tool is not None else {}
        self._root: Schema = root
        resolved = self.resolved(root)
        properties = resolved.get("properties")
        required = resolved.get("required")
        self.properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self.required: tuple[str, ...] = tuple(map(str, required)) if isinstance(required, (list, tuple)) else ()
        self._others = resolved.get("additionalProperties")

    @property
    def names(self) -> tuple[str, ...]:
        """All that the schema names, in its order."""
        return tuple({**self.properties, **dict.fromkeys(self.required)})

    def of(self, name: str) -> object:
        """A parameter's schema. None: nothing is said of it."""
        return self.properties.get(name, self._others)

    def types(self, name: str) -> Types | None:
        """What a parameter may be. None: the schema does not say."""
        found = self._types(self.of(name), _MAX_DEPTH)
        return None if found == ALL_TYPES else found

    def types_of(self, schema: object) -> Types:
        return self._types(schema, _MAX_DEPTH)

    def resolved(self, schema: object) -> Schema:
        """The schema, or the one that it refers to within the tool's."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, Mapping):
                return {}
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._referred(reference)
        return {}

    def standalone(self, schema: object) -> Schema:
        """The schema with the definitions that it may refer to."""
        if not isinstance(schema, Mapping):
            return {}
        definitions = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return {**schema, **definitions}

    def _referred(self, reference: str) -> object:
        target: object = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            if not isinstance(target, Mapping):
                return None
            target = target.get(part.replace("~1", "/").replace("~0", "~"))
        return target

    def _types(self, schema: object, depth: int) -> Types:
        schema = self.resolved(schema)
        if depth == 0 or not schema:
            return ALL_TYPES
        found = ALL_TYPES
        if (named := _named_types(schema.get("type"))) is not None:
            # OpenAPI's word for it, which tools of some clients still have.
            found &= named | {"null"} if schema.get("nullable") is True else named
        if isinstance(values := schema.get("enum"), (list, tuple)):
            found &= frozenset().union(*map(value_types, values))
        if "const" in schema:
            found &= value_types(schema["const"])
        for combination in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(combination), (list, tuple)) and choices:
                found &= frozenset().union(*(self._types(choice, depth - 1) for choice in choices))
        if isinstance(parts := schema.get("allOf"), (list, tuple)):
            for part in parts:
                found &= self._types(part, depth - 1)
        return found or ALL_TYPES


def value_types(value: object) -> Types:
    """The types that a value, as Python's `json` reads it, is of."""
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"}) if value.is_integer() else frozenset({"number"})
        case str():
            return STRING
        case list() | tuple():
            return frozenset({"array"})
        case None:
            return frozenset({"null"})
        case _:
            return frozenset({"object"})


def _named_types(named: object) -> Types | None:
    names = [named] if isinstance(named, str) else named if isinstance(named, (list, tuple)) else []
    found = frozenset(name.lower() for name in names if isinstance(name, str)) & ALL_TYPES
    if "number" in found:
        found |= {"integer"}
    return found or None
