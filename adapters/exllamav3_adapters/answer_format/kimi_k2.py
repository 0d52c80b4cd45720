"""The form of Kimi K2, whose calls are numbered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exllamav3_adapters.answer_format.headed_calls import HeadedCalls
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls
from exllamav3_adapters.answer_format.tool_format import CallReader, tool_name, tool_parameters
from exllamav3_adapters.contract import Tool

_SECTION: Final = "<|tool_calls_section_begin|>"
_SECTION_END: Final = "<|tool_calls_section_end|>"
_BEGIN: Final = "<|tool_call_begin|>"
_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_END: Final = "<|tool_call_end|>"


@dataclass(frozen=True, kw_only=True)
class KimiK2:
    """A `ToolFormat`."""

    name: str = "kimi_k2"
    openings: tuple[str, ...] = (_SECTION, _BEGIN)
    first_openings: tuple[str, ...] = ()
    begin: str = _BEGIN
    call_end: str | None = _END
    section_end: str | None = _SECTION_END
    tags: tuple[str, ...] = (_SECTION, _BEGIN, _ARGUMENTS, _END, _SECTION_END)

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        return HeadedCalls(self, opening)

    def split(self, header: str, *, is_whole: bool) -> tuple[str, str] | None:
        call_id, separator, arguments = header.partition(_ARGUMENTS)
        if not separator and not is_whole:
            return None
        return re.sub(r":\d+$", "", call_id.strip().removeprefix("functions.")), arguments.strip()

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        return section_of_calls(
            [self._call(tool) for tool in tools], before=_SECTION, between="", after=_SECTION_END, parallel=parallel
        )

    def _call(self, tool: Tool) -> str:
        head = f"{literal(f'{_BEGIN}functions.{tool_name(tool)}:')} /[0-9]{{1,3}}/ {literal(_ARGUMENTS)}"
        return f"{head} {json_value(tool_parameters(tool))} {literal(_END)}"


KIMI_K2: Final = KimiK2()
