"""Grammar of Gemma 4's calls. Strings and keys are not JSON's, so each part of a schema becomes a rule of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from exllamav3_adapters.answer_format.free_text import text_rules
from exllamav3_adapters.answer_format.gemma_value import QUOTE
from exllamav3_adapters.answer_format.grammar_members import members
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls
from exllamav3_adapters.answer_format.parameter_schema import ParameterSchema, Schema
from exllamav3_adapters.answer_format.schema_choices import Choice, FixedChoice, TextChoice, choices
from exllamav3_adapters.answer_format.tool_format import tool_name
from exllamav3_adapters.contract import Tool

_MAX_DEPTH = 12
"""Of what is written by its schema; what lies deeper, in schemas that refer to themselves, is any value."""
_ANY_VALUE = (
    f'call_value: {literal(QUOTE)} call_text | call_number | "true" | "false" | "null" | call_list | call_object',
    'call_list: "[" (call_value ("," call_value)*)? "]"',
    'call_object: "{" (call_member ("," call_member)*)? "}"',
    'call_member: /[A-Za-z_][A-Za-z0-9_]*/ ":" call_value',
    f"call_number: {json_value({'type': 'number'})}",
    *text_rules("call_text", {}, QUOTE),
)


class GemmaGrammar:
    """The rules of one request's tools."""

    def __init__(self, opening: str, close: str) -> None:
        self._opening = opening
        self._close = close
        self._rules: list[str] = []

    def rules(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        calls = [self._call(number, tool) for number, tool in enumerate(tools)]
        section = section_of_calls(
            calls, before=self._opening, between=self._close + self._opening, after=self._close, parallel=parallel
        )
        return "\n".join((section, *self._rules, *_ANY_VALUE))

    def _call(self, number: int, tool: Tool) -> str:
        parameters = ParameterSchema(tool)
        written = self._members(f"call_{number}", parameters, parameters.properties, parameters.required, _MAX_DEPTH)
        return f"{literal(f'call:{tool_name(tool)}')} {written}"

    def _members(
        self,
        rule: str,
        parameters: ParameterSchema,
        properties: Mapping[str, Any],
        required: Sequence[str],
        depth: int,
    ) -> str:
        """An object with braces. The template sorts its keys."""
        items: list[tuple[str, bool]] = []
        names = {**properties, **{name: {} for name in required if name not in properties}}
        for number, name in enumerate(sorted(names, key=str.lower)):
            value = self._value(f"{rule}_{number}", parameters, names[name], depth)
            items.append((f"{literal(f'{name}:')} {value}", name in required))
        return f"""{literal("{")} {members(items, ",")} {literal("}")}"""

    def _value(self, rule: str, parameters: ParameterSchema, schema: object, depth: int) -> str:
        """The name of a rule for values of a schema."""
        if depth == 0:
            return "call_value"
        options = [
            self._option(f"{rule}_{number}", parameters, choice, depth)
            for number, choice in enumerate(choices(parameters, schema))
        ]
        self._rules.append(f"{rule}: {' | '.join(options)}")
        return rule

    def _option(self, rule: str, parameters: ParameterSchema, choice: Choice, depth: int) -> str:
        if isinstance(choice, FixedChoice):
            return literal(gemma_value(choice.value))
        if isinstance(choice, TextChoice):
            if choice.is_free:
                return f"{literal(QUOTE)} call_text" if choice.is_string else "call_value"
            self._rules += text_rules(rule, choice.schema, QUOTE)
            return f"{literal(QUOTE)} {rule}"
        options = []
        for kind in choice.types:
            if kind == "array":
                options.append(self._list(rule, parameters, choice.schema, depth))
            elif kind == "object":
                options.append(self._object(rule, parameters, choice.schema, depth))
            else:
                options.append(json_value({**choice.schema, "type": kind}))
        return " | ".join(options)

    def _object(self, rule: str, parameters: ParameterSchema, schema: Schema, depth: int) -> str:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping) or not properties:
            return "call_object"
        return self._members(rule, parameters, properties, required if isinstance(required, list) else (), depth - 1)

    def _list(self, rule: str, parameters: ParameterSchema, schema: Schema, depth: int) -> str:
        item = self._value(f"{rule}_item", parameters, schema.get("items", {}), depth - 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[" "]"'
        more = f"({literal(',')} {item}){{{max(least - 1, 0)},{most - 1 if most is not None else ''}}}"
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'


def gemma_value(value: object) -> str:
    match value:
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case list() | tuple():
            return f"[{','.join(map(gemma_value, value))}]"
        case dict():
            return "{" + ",".join(f"{key}:{gemma_value(value[key])}" for key in sorted(value, key=str.lower)) + "}"
        case _:
            return json.dumps(value)
