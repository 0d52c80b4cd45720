"""Mistral's forms: a list of JSON objects at first, later a name and then its arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from exllamav3_adapters.answer_format.headed_calls import HeadedCalls
from exllamav3_adapters.answer_format.json_calls import JsonCalls
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls
from exllamav3_adapters.answer_format.tool_format import CallReader, Piece, tool_name, tool_parameters
from exllamav3_adapters.contract import Tool

_CALLS: Final = "[TOOL_CALLS]"
_ID: Final = "[CALL_ID]"
_ARGUMENTS: Final = "[ARGS]"
_ID_PATTERN: Final = "/[a-zA-Z0-9]{9}/"


@dataclass(frozen=True, kw_only=True)
class Mistral:
    """A `ToolFormat`. All forms are read; `style` is what the grammar writes.

    - `list`: `[TOOL_CALLS][{"name": "f", "arguments": {...}, "id": "..."}]`
    - `id`: `[TOOL_CALLS]f[CALL_ID]...[ARGS]{...}`
    - `name`: `[TOOL_CALLS]f[ARGS]{...}`
    """

    name: str
    style: Literal["list", "id", "name"]
    openings: tuple[str, ...] = (_CALLS,)
    first_openings: tuple[str, ...] = ()
    begin: str = _CALLS
    call_end: str | None = None
    section_end: str | None = None
    tags: tuple[str, ...] = (_CALLS, _ID, _ARGUMENTS)

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        return _EitherForm(self)

    def split(self, header: str, *, is_whole: bool) -> tuple[str, str] | None:
        if not is_whole and _ID not in header and _ARGUMENTS not in header:
            return None
        named, _, arguments = header.partition(_ARGUMENTS)
        return named.partition(_ID)[0].strip(), arguments.strip()

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        if self.style == "list":
            calls = [self._listed_call(tool) for tool in tools]
            return section_of_calls(calls, before=f"{_CALLS}[", between=", ", after="]", parallel=parallel)
        calls = [self._call(tool) for tool in tools]
        return section_of_calls(calls, before="", between="", after="", parallel=parallel)

    def _call(self, tool: Tool) -> str:
        call_id = f"{literal(_ID)} {_ID_PATTERN} " if self.style == "id" else ""
        return f"{literal(_CALLS + tool_name(tool))} {call_id}{literal(_ARGUMENTS)} {json_value(tool_parameters(tool))}"

    def _listed_call(self, tool: Tool) -> str:
        head = literal(f'{{"name": {json.dumps(tool_name(tool), ensure_ascii=False)}, "arguments": ')
        id_before, id_after = literal(', "id": "'), literal('"')
        return f"{head} {json_value(tool_parameters(tool))} ({id_before} {_ID_PATTERN} {id_after})? {literal('}')}"


class _EitherForm:
    """A `CallReader` of whichever form the first sign shows."""

    def __init__(self, form: Mistral) -> None:
        self._form = form
        self._reader: CallReader | None = None
        self._held = ""
        self.rest: str | None = None

    def read(self, text: str) -> list[Piece]:
        if self._reader is None:
            text = self._held = (self._held + text).lstrip()
            if any(tag.startswith(text) and tag != text for tag in self._form.tags):
                return []
            is_json = text[0] in "[{" and not text.startswith(self._form.tags)
            self._reader = JsonCalls(None, _CALLS) if is_json else HeadedCalls(self._form, _CALLS)
        pieces = self._reader.read(text)
        self.rest = self._reader.rest
        return pieces

    def end(self) -> list[Piece]:
        return self._reader.end() if self._reader is not None else []


MISTRAL: Final = Mistral(name="mistral", style="list")
MISTRAL_ID: Final = Mistral(name="mistral_id", style="id")
MISTRAL_NAME: Final = Mistral(name="mistral_name", style="name")
