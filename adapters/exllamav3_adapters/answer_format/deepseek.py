"""The form of DeepSeek V3 and R1, in which a call names its type first, and that of V3.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exllamav3_adapters.answer_format.headed_calls import HeadedCalls
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls
from exllamav3_adapters.answer_format.tool_format import CallReader, tool_name, tool_parameters
from exllamav3_adapters.contract import Tool

_SECTION: Final = "<｜tool▁calls▁begin｜>"
_SECTION_END: Final = "<｜tool▁calls▁end｜>"
_BEGIN: Final = "<｜tool▁call▁begin｜>"
_END: Final = "<｜tool▁call▁end｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
_FENCE: Final = "```"


@dataclass(frozen=True, kw_only=True)
class DeepSeek:
    """A `ToolFormat`. Both forms are read; `fenced` is what the grammar writes: V3's type, and its code block."""

    name: str
    fenced: bool
    openings: tuple[str, ...] = (_SECTION, _BEGIN)
    first_openings: tuple[str, ...] = ()
    begin: str = _BEGIN
    call_end: str | None = _END
    section_end: str | None = _SECTION_END
    tags: tuple[str, ...] = (_SECTION, _BEGIN, _SEPARATOR, _END, _SECTION_END)

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        return HeadedCalls(self, opening)

    def split(self, header: str, *, is_whole: bool) -> tuple[str, str] | None:
        first, separator, second = (part.strip(" \t\r\n") for part in header.partition(_SEPARATOR))
        if not separator:
            return None
        if first != "function" or (is_whole and not second):
            return first, second
        name, *block = second.split("\n", 1)
        if not (block or is_whole):
            return None
        return name.strip(), "".join(block).strip().removeprefix(f"{_FENCE}json").strip("` \n")

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        return section_of_calls(
            [self._call(tool) for tool in tools],
            before=_SECTION,
            between="\n" if self.fenced else "",
            after=_SECTION_END,
            parallel=parallel,
        )

    def _call(self, tool: Tool) -> str:
        arguments = json_value(tool_parameters(tool))
        if self.fenced:
            head = literal(f"{_BEGIN}function{_SEPARATOR}{tool_name(tool)}\n{_FENCE}json\n")
            return f"{head} {arguments} {literal(f'{chr(10)}{_FENCE}{_END}')}"
        return f"{literal(f'{_BEGIN}{tool_name(tool)}{_SEPARATOR}')} {arguments} {literal(_END)}"


DEEPSEEK: Final = DeepSeek(name="deepseek", fenced=True)
DEEPSEEK_V31: Final = DeepSeek(name="deepseek_v31", fenced=False)
