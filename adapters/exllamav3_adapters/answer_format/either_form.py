"""The calls of a model whose template renders no tools, but calls in a form of the model's own.

It is told of our form (`tool_block.py`), and may fall back to the one that it was trained on: DeepSeek V3.1 and R1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exllamav3_adapters.answer_format.tool_format import CallReader, ToolFormat
from exllamav3_adapters.contract import Tool


@dataclass(frozen=True)
class EitherForm:
    """A `ToolFormat`: calls are asked for in the first form, and read in both."""

    asked: ToolFormat
    own: ToolFormat

    @property
    def name(self) -> str:
        return self.asked.name

    @property
    def openings(self) -> tuple[str, ...]:
        return (*self.asked.openings, *self.own.openings)

    @property
    def first_openings(self) -> tuple[str, ...]:
        return (*self.asked.first_openings, *self.own.first_openings)

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.asked.tags, *self.own.tags)

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        form = self.asked if opening in (*self.asked.openings, *self.asked.first_openings) else self.own
        return form.reader(opening, tools)

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        return self.asked.grammar(tools, parallel=parallel)
