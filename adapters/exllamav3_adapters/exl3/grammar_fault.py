"""What is wrong with a grammar that LLGuidance refuses, in its author's words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from llguidance import LLMatcher

from exllamav3_adapters.answer_format.answer_grammar import FORMAT_PARAM
from exllamav3_adapters.answer_format.json_schema import enforced, subschemas
from exllamav3_adapters.answer_format.tool_format import tool_name, tool_parameters
from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest

_SHARED: Final = ("$schema", "$defs", "definitions")
"""What a part of a schema may need of the whole."""
_KEYWORDS: Final = re.compile(r"Unimplemented keys: \[(.*)\]")


def grammar_fault(refusal: str, schemas: list[Any], params: GenerationParams) -> InvalidRequest:
    """`refusal` is what LLGuidance says of `params.grammar`, `schemas` are those in it. Slow: a schema's parts are
    tried one by one."""
    assert params.grammar is not None
    use = params.chat.tool_use if params.chat is not None else None
    for tool in use.tools if use is not None else ():
        fault = _schema_fault(enforced(tool_parameters(tool)))
        if fault is not None:
            return InvalidRequest(
                f"calls of the tool {tool_name(tool)!r} cannot be enforced; in its parameters, {fault}", "tools"
            )
    for fault in filter(None, map(_schema_fault, schemas)):
        return InvalidRequest(f"the JSON schema cannot be enforced: {fault}", FORMAT_PARAM)
    return InvalidRequest(f"the {params.grammar.kind} cannot be used as a grammar: {_worded(refusal)}", FORMAT_PARAM)


def _schema_fault(schema: Mapping[str, Any]) -> str | None:
    """The innermost part that is refused, and why. None: the schema is not refused."""
    whole = _refusal(schema)
    if not whole:
        return None
    shared = {key: schema[key] for key in _SHARED if key in schema}
    for path, part in sorted(subschemas(schema), key=lambda found: -len(found[0])):
        refusal = _refusal({**shared, **part})
        if refusal:
            return f"{'.'.join(path)}: {_worded(refusal)}" if path else _worded(refusal)
    return _worded(whole)


def _refusal(schema: Mapping[str, Any]) -> str:
    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema))))


def _worded(refusal: str) -> str:
    unknown = _KEYWORDS.search(refusal)
    if unknown is not None:
        return f"the keyword {unknown[1]} is not supported"
    return " ".join(refusal.split())
