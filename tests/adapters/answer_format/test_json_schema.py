"""Whatever a grammar of a schema takes is valid against that schema: random answers, judged by `jsonschema`."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tiny_model import write_tokenizer

from exllamav3_adapters.answer_format.json_schema import SchemaFault, enforced
from exllamav3_adapters.answer_format.lark import json_value

END_OF_TURN = 2
CLOSING = (b'"', b"}", b"]", b",")
POINT = {"x": {"type": "integer"}, "y": {"type": "number"}}
NODE = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
    "required": ["children"],
    "additionalProperties": False,
}


def kind(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"const": name}, **properties},
        "required": ["kind", *required],
        "additionalProperties": False,
    }


SCHEMAS: dict[str, Any] = {
    "anything": {},
    "any object": {"type": "object"},
    "objects": {"type": "object", "properties": POINT, "required": ["x"], "additionalProperties": False},
    "open objects": {"type": "object", "properties": POINT, "required": ["y"]},
    "maps": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "at least one key": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    "at most one key": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
    "keys by pattern": {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    "keys of strings": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}},
    "properties without a type": {"properties": POINT},
    "a key that must not be": {"type": "object", "properties": {"x": False}},
    "quoted keys": {"type": "object", "properties": {'é"': {"const": 1}}, "required": ['é"']},
    "required without properties": {"type": "object", "required": ["a", "b"]},
    "arrays": {"type": "array", "items": {"enum": [1, "a", None]}, "minItems": 2, "maxItems": 3},
    "tuples": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
    "items that may repeat": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": False},
    "nested arrays": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "several types": {"type": ["string", "null"], "maxLength": 3},
    "enum": {"enum": ['a"b', "ü\n", 1.5, {"a": [1]}, []]},
    "enum within limits": {"enum": ["a", "bb", "ccc"], "minLength": 2},
    "const": {"const": {"b": "a/b\\", "a": [1, None]}},
    "length": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-z]{2,4}$"},
    "a pattern anywhere": {"type": "string", "pattern": "[0-9]{2}", "maxLength": 4},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 5},
    "alternatives in a pattern": {"type": "string", "pattern": "^a|b$", "maxLength": 3},
    "any sign in a pattern": {"type": "string", "pattern": "^.{3}$"},
    "slashes in a pattern": {"type": "string", "pattern": "^\\/x$"},
    "no quote": {"type": "string", "pattern": '^[^"]+$'},
    "no backslash": {"type": "string", "pattern": "^[^\\\\]+$"},
    "no quote and no a": {"type": "string", "pattern": '^[a-c][^a"]*$'},
    "no quote in a key": {"patternProperties": {'^[^"]*$': {"const": 1}}, "additionalProperties": False},
    "no sign but some": {"type": "string", "pattern": "^[^ -~]+$"},
    "no new line": {"type": "string", "pattern": "^[^\\n]+$"},
    **{
        f"format {name}": {"type": "string", "format": name}
        for name in ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
    },
    "a format that is none": {"type": "string", "format": "password", "maxLength": 9},
    "a number's format": {"type": "integer", "format": "int32"},
    "integers": {"type": "integer", "minimum": -3, "exclusiveMaximum": 12},
    "numbers": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "limits between integers": {"type": "integer", "minimum": 3.5, "maximum": 7.2},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 100},
    "halves": {"type": "number", "multipleOf": 0.5, "minimum": -50, "maximum": 100},
    "anyOf": {"anyOf": [kind("a", "x", **POINT), kind("b")]},
    "oneOf": {"oneOf": [kind("a"), kind("b", "y", **POINT)]},
    "anyOf beside limits": {"anyOf": [{"type": "integer"}, {"type": "null"}], "minimum": 5},
    "anyOf beside properties": {"properties": POINT, "anyOf": [{"required": ["x"]}, {"required": ["z"]}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "recursion": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "the root again": {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
    "a reference beside limits": {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 4},
    "definitions": {"definitions": {"n": POINT["x"]}, "properties": {"n": {"$ref": "#/definitions/n"}}},
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 3,
        "exclusiveMinimum": True,
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}],
        "additionalItems": {"type": "string", "maxLength": 1},
    },
    "remarks": {"title": "A", "description": "b", "default": 3, "examples": [{"pattern": "("}], "type": "integer"},
    "names of keywords": {"type": "object", "properties": {"pattern": {"const": 1}, "uniqueItems": {"const": 2}}},
    "options of the grammar's own": {"type": "object", "x-guidance": {"lenient": True}, "maxProperties": 1},
}

REFUSED: dict[str, tuple[Any, str]] = {
    "keys that differ": (
        {"properties": {"a": {"type": "object", "minProperties": 2}}},
        r"properties\.a\.minProperties: that several keys differ",
    ),
    "keys that differ from the required": (
        {"type": "object", "required": ["a"], "minProperties": 3},
        r"minProperties: ",
    ),
    "no schema": ([], "must be an object"),
    "false": (False, "must be an object"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    """A token a byte."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return LLTokenizer((folder / "tokenizer.json").read_text(), eos_token=END_OF_TURN)


def random_answer(tokenizer: LLTokenizer, rule: str, source: Random) -> str:
    """Any whole text that the rule takes, the shorter the likelier."""
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(f"start: {rule}"))
    assert not matcher.get_error()
    token_ids: list[int] = []
    while not matcher.is_stopped():
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        allowed = [int(token_id) for token_id in np.flatnonzero(bits) if token_id < tokenizer.vocab_size]
        assert allowed
        if END_OF_TURN in allowed and (len(allowed) == 1 or source.random() < 0.3):
            break
        closing = [token_id for token_id in allowed if tokenizer.decode_bytes([token_id]) in CLOSING]
        token_id = source.choice(closing if closing and source.random() < 0.4 else allowed)
        if token_id != END_OF_TURN:
            assert matcher.consume_token(token_id)
            token_ids.append(token_id)
    return tokenizer.decode_bytes(token_ids).decode()


def faults(value: Any, schema: Any) -> list[str]:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return [error.message for error in kind(schema, format_checker=kind.FORMAT_CHECKER).iter_errors(value)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_the_grammar_takes_is_valid(tokenizer: LLTokenizer, name: str) -> None:
    rule, source = json_value(SCHEMAS[name]), Random(name)
    for _ in range(30):
        text = random_answer(tokenizer, rule, source)
        assert faults(json.loads(text), SCHEMAS[name]) == [], text


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_stand_on_one_line(tokenizer: LLTokenizer, name: str) -> None:
    source = Random(name)
    text = random_answer(tokenizer, json_value(SCHEMAS[name]), source)
    assert text == text.strip()
    assert "\n" not in text


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused(name: str) -> None:
    schema, fault = REFUSED[name]
    with pytest.raises(SchemaFault, match=fault):
        enforced(schema)


@pytest.mark.parametrize("text", ['{"x": 1, "y": 2.5}', '{"x":1,"y":2.5}', '{"x": 1,"y":2.5}'])
def test_a_space_behind_signs_is_left_to_the_model(tokenizer: LLTokenizer, text: str) -> None:
    rule = json_value({"type": "object", "properties": POINT, "required": ["x", "y"], "additionalProperties": False})
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(f"start: {rule}"))
    assert matcher.consume_tokens(tokenizer.tokenize_str(text))
    assert matcher.is_accepting()
    assert not matcher.validate_tokens(tokenizer.tokenize_str(" "))
