"""Forms whose calls are JSON objects between tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exllamav3_adapters.answer_format.json_calls import JsonCalls
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls
from exllamav3_adapters.answer_format.tool_format import CallReader, tool_name, tool_parameters
from exllamav3_adapters.contract import Tool


@dataclass(frozen=True, kw_only=True)
class JsonInTags:
    """A `ToolFormat`. Reading takes one object or a list of them, whichever the form asks for; the keys too."""

    name: str
    before: str
    """What precedes the first call, tag included, as the template writes it."""
    between: str
    """What separates two calls."""
    after: str
    """What follows the last one."""
    opening: str
    close: str | None
    name_key: str = "name"
    arguments_key: str = "arguments"
    numbered: bool = False
    """Each call begins with its number, as text: `"tool_call_id": "0"`."""
    first_openings: tuple[str, ...] = ()

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.opening,)

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.opening, self.close) if self.close is not None else (self.opening,)

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        return JsonCalls(self.close, opening)

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        calls = [self._object(tool) for tool in tools]
        return section_of_calls(calls, before=self.before, between=self.between, after=self.after, parallel=parallel)

    def _object(self, tool: Tool) -> str:
        name = json.dumps(tool_name(tool), ensure_ascii=False)
        named = f'"{self.name_key}": {name}, "{self.arguments_key}": '
        if self.numbered:
            head = f"""{literal('{"tool_call_id": "')} /[0-9]{{1,3}}/ {literal('", ' + named)}"""
        else:
            head = literal("{" + named)
        return f"{head} {json_value(tool_parameters(tool))} {literal('}')}"


HERMES: Final = JsonInTags(
    name="hermes",
    before="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
    opening="<tool_call>",
    close="</tool_call>",
)
"""Hermes, Qwen 2.5 and 3, QwQ, Granite 4, SmolLM3, and our own tool block."""

COMMAND: Final = JsonInTags(
    name="command",
    before="<|START_ACTION|>[\n    ",
    between=",\n    ",
    after="\n]<|END_ACTION|>",
    opening="<|START_ACTION|>",
    close="<|END_ACTION|>",
    name_key="tool_name",
    arguments_key="parameters",
    numbered=True,
)
"""Command R7B and A."""

NEMOTRON: Final = JsonInTags(
    name="nemotron",
    before="<TOOLCALL>[",
    between=", ",
    after="]</TOOLCALL>",
    opening="<TOOLCALL>",
    close="</TOOLCALL>",
)
"""Nemotron Nano."""

GRANITE: Final = JsonInTags(
    name="granite", before="<|tool_call|>[", between=", ", after="]", opening="<|tool_call|>", close=None
)
"""Granite 3."""

PHI: Final = JsonInTags(
    name="phi",
    before="<|tool_call|>[",
    between=", ",
    after="]<|/tool_call|>",
    opening="<|tool_call|>",
    close="<|/tool_call|>",
)
"""Phi 4 mini."""

JAMBA: Final = JsonInTags(
    name="jamba",
    before="<tool_calls>[",
    between=", ",
    after="]</tool_calls>",
    opening="<tool_calls>",
    close="</tool_calls>",
)
"""Jamba and Hunyuan."""
