"""Values without quotes become JSON by what the tool's schema says of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exllamav3_adapters.answer_format.argument_value import TextArgument, as_json
from exllamav3_adapters.answer_format.parameter_schema import ParameterSchema, Types

STRING = {"type": "string"}


def types_of(schema: object, **definitions: Any) -> Types | None:
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": definitions}
    return ParameterSchema({"type": "function", "function": {"name": "f", "parameters": parameters}}).types("x")


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (STRING, {"string"}),
        ({"type": "STRING"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [STRING, {"type": "integer"}]}, {"string", "integer"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": ["a", 1]}, {"string", "integer", "number"}),
        ({"const": None}, {"null"}),
        ({"$ref": "#/$defs/Color"}, {"string"}),
        ({"allOf": [{"$ref": "#/$defs/Color"}], "default": "a"}, {"string"}),
        ({}, None),
        (True, None),
        ({"$ref": "#/$defs/Nowhere"}, None),
        ({"$ref": "#/$defs/Loop"}, None),
    ],
)
def test_a_schema_says_which_types_a_parameter_has(schema: object, types: set[str] | None) -> None:
    found = types_of(schema, Color={"enum": ["a"]}, Loop={"$ref": "#/$defs/Loop"})
    assert found == types


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STRING, "12", "12"),
        (STRING, "null", "null"),
        (STRING, '"a"', '"a"'),
        ({"type": "integer"}, " 12\n", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "integer"}, "1.5", "1.5"),
        ({"type": "integer"}, "[1]", "[1]"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "True", True),
        ({"type": "array"}, '[1, "a"]', [1, "a"]),
        ({"type": "array"}, "[1, 'a', None, True]", [1, "a", None, True]),
        ({"type": "array"}, "[1, ", "[1, "),
        ({"type": "object"}, "{'a': {'b': (1, 2)}}", {"a": {"b": [1, 2]}}),
        ({"type": "object"}, "__import__('os')", "__import__('os')"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nullify", "nullify"),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": ["string", "integer"]}, "true", "true"),
        ({}, "5", 5),
        ({}, "True", "True"),
        ({}, "some text", "some text"),
        ({}, "[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_becomes_json_of_its_type(schema: object, text: str, value: object) -> None:
    assert json.loads(as_json(text, types_of(schema))) == value
    argument = TextArgument(types_of(schema), in_lines=False)
    assert json.loads("".join([*map(argument.read, text), argument.end()])) == value


@pytest.mark.parametrize("text", ["", "\n", "\n\n", "a", "a\n", "\na", "\n\na\n\n"])
def test_only_the_templates_line_breaks_are_taken_off(text: str) -> None:
    argument = TextArgument(types_of(STRING), in_lines=True)
    assert json.loads("".join([*map(argument.read, f"\n{text}\n"), argument.end()])) == text


def test_a_string_is_passed_on_as_it_comes() -> None:
    argument = TextArgument(types_of(STRING), in_lines=False)
    assert [argument.read(piece) for piece in ("a ", '"', "\n")] == ['"a ', '\\"', "\\n"]


def test_a_nullable_string_is_passed_on_once_it_is_not_null() -> None:
    argument = TextArgument(types_of({"type": ["string", "null"]}), in_lines=False)
    assert [argument.read(piece) for piece in ("nu", "ts", " and")] == ["", '"nuts', " and"]
