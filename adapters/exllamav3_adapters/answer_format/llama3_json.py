"""Llama 3's form: a JSON object, and nothing else that would tell a call from an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from exllamav3_adapters.answer_format.json_call import JsonCall
from exllamav3_adapters.answer_format.json_calls import JsonCalls
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls
from exllamav3_adapters.answer_format.tool_format import CallReader, tool_name, tool_parameters
from exllamav3_adapters.contract import Tool

_TAG: Final = "<|python_tag|>"
_BRACE: Final = "{"


@dataclass(frozen=True, kw_only=True)
class Llama3Json:
    """A `ToolFormat`. An object at the front of an answer is a call if it names one of the tools; behind the tag,
    whatever it names. Further calls follow on new lines or behind semicolons."""

    name: str = "llama3_json"
    openings: tuple[str, ...] = (_TAG,)
    first_openings: tuple[str, ...] = (_BRACE,)
    tags: tuple[str, ...] = (_TAG,)

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        if opening == _TAG:
            return JsonCalls(None, _TAG)
        calls = JsonCalls(None, new_call=partial(JsonCall, [tool_name(tool) for tool in tools]))
        calls.read(_BRACE)
        return calls

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        return section_of_calls(
            [self._call(tool) for tool in tools], before="", between="; ", after="", parallel=parallel
        )

    def _call(self, tool: Tool) -> str:
        head = literal(f'{{"name": {json.dumps(tool_name(tool), ensure_ascii=False)}, "parameters": ')
        return f"{head} {json_value(tool_parameters(tool))} {literal('}')}"


LLAMA3_JSON: Final = Llama3Json()
