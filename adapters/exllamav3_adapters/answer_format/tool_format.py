"""What a form of tool calls must bring: how its calls are found and read, and how they are enforced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from exllamav3_adapters.contract import Tool


@dataclass(frozen=True, slots=True)
class CallBegun:
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON object of the call that began last."""

    text: str


@dataclass(frozen=True, slots=True)
class Prose:
    """What stood where a call was expected and is none. Without the markup around it."""

    text: str


Piece: TypeAlias = CallBegun | CallArguments | Prose


class CallReader(Protocol):
    """Reads one section of calls, from behind its opening to its end."""

    rest: str | None
    """What follows the section, once its end was read; None until then."""

    def read(self, text: str) -> list[Piece]:
        """What is certain once this piece is known; it may be cut anywhere. Not called again once `rest` is set."""

    def end(self) -> list[Piece]:
        """The answer ends inside the section. A call whose name is not complete is dropped; one whose arguments are
        not complete keeps those that there are."""


class CallGrammar(Protocol):
    """How calls are enforced."""

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        """Lark rules (`lark.py`), of which the first is named `calls` and the others begin with `call_`: exactly one
        call to one of the tools or, with `parallel`, one or more, in the words of the model's template, with arguments
        that are valid against the tool's schema."""


class ToolFormat(CallGrammar, Protocol):
    """One family's form. Stateless: one object serves all answers."""

    @property
    def name(self) -> str:
        """In the settings."""

    @property
    def openings(self) -> tuple[str, ...]:
        """Texts that begin a section of calls, wherever they stand in the answer's text."""

    @property
    def first_openings(self) -> tuple[str, ...]:
        """Texts that do so only where no other text and no call came before: for forms without markup of their own."""

    @property
    def tags(self) -> tuple[str, ...]:
        """All texts of the form that a tokenizer may have as special tokens, and which must then be part of the
        text."""

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        """For one section. `tools` are the request's, for names and for the types of their parameters."""


def tool_name(tool: Tool) -> str:
    name: str = tool["function"]["name"]
    return name


def tool_parameters(tool: Tool) -> dict[str, object]:
    """The JSON Schema of a tool's arguments; of a tool without any, an object's."""
    parameters = tool["function"].get("parameters")
    return dict(parameters) if parameters else {"type": "object", "properties": {}}


def find_tool(tools: Sequence[Tool], name: str) -> Tool | None:
    return next((tool for tool in tools if tool_name(tool) == name), None)
