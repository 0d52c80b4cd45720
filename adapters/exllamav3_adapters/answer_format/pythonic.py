"""Calls as Python writes them: `<|tool_call_start|>[f(a=1, b="x")]<|tool_call_end|>`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from exllamav3_adapters.answer_format.grammar_members import members
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls
from exllamav3_adapters.answer_format.literal_calls import CallWords, LiteralCalls
from exllamav3_adapters.answer_format.parameter_schema import ParameterSchema
from exllamav3_adapters.answer_format.python_literal import python_literal_as_json
from exllamav3_adapters.answer_format.schema_choices import Choice, FixedChoice, TextChoice, choices
from exllamav3_adapters.answer_format.tool_format import CallReader, tool_name
from exllamav3_adapters.contract import Tool

_WORDS: Final = CallWords(
    opening="<|tool_call_start|>",
    close="<|tool_call_end|>",
    call="",
    name_end="(",
    key=re.compile(r"\s*([^\W\d][\w-]*)\s*="),
    begun_key=re.compile(r"\s*(?:[^\W\d][\w-]*\s*)?"),
    call_end=")",
    between=" \t\r\n[],;",
    quotes={'"""': True, "'''": True, '"': True, "'": True},
    as_json=python_literal_as_json,
)
_PYTHON_WORDS: Final = {"boolean": (literal("True"), literal("False")), "null": (literal("None"),)}


class Pythonic:
    """A `ToolFormat`."""

    name = "pythonic"
    openings: tuple[str, ...] = (_WORDS.opening,)
    first_openings: tuple[str, ...] = ()
    tags: tuple[str, ...] = _WORDS.tags

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        return LiteralCalls(_WORDS, tools)

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        return section_of_calls(
            [_call(tool) for tool in tools],
            before=f"{_WORDS.opening}[",
            between=", ",
            after=f"]{_WORDS.close}",
            parallel=parallel,
        )


PYTHONIC: Final = Pythonic()
"""LFM2."""


def _call(tool: Tool) -> str:
    parameters = ParameterSchema(tool)
    items = []
    for name in parameters.names:
        options = [option for choice in choices(parameters, parameters.of(name)) for option in _options(choice)]
        items.append((f"{literal(f'{name}=')} ({' | '.join(options)})", name in parameters.required))
    return f"""{literal(tool_name(tool) + "(")} {members(items, ", ")} {literal(")")}"""


def _options(choice: Choice) -> Sequence[str]:
    if isinstance(choice, FixedChoice):
        return [literal(_written(choice.value))]
    if isinstance(choice, TextChoice):
        return [json_value({**choice.schema, "type": "string"} if choice.is_string else {})]
    bare = [kind for kind in choice.types if kind not in _PYTHON_WORDS]
    words = [word for kind in choice.types for word in _PYTHON_WORDS.get(kind, ())]
    return [*words, json_value({**choice.schema, "type": bare})] if bare else words


def _written(value: object) -> str:
    """JSON is Python but for its words."""
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)
