"""Gemma 4's calls: `<|tool_call>call:f{text:<|"|>a<|"|>,list:[1,<|"|>b<|"|>]}<tool_call|>`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from exllamav3_adapters.answer_format.gemma_grammar import GemmaGrammar
from exllamav3_adapters.answer_format.gemma_value import BEGUN_KEY, KEY, QUOTE, gemma_value_as_json
from exllamav3_adapters.answer_format.literal_calls import CallWords, LiteralCalls
from exllamav3_adapters.answer_format.tool_format import CallReader
from exllamav3_adapters.contract import Tool

_WORDS: Final = CallWords(
    opening="<|tool_call>",
    close="<tool_call|>",
    call="call:",
    name_end="{",
    key=KEY,
    begun_key=BEGUN_KEY,
    call_end="}",
    between=" \t\r\n",
    quotes={QUOTE: False, '"': True},
    as_json=gemma_value_as_json,
    # The model ends its turn with the tag of the result that it waits for.
    more_tags=(QUOTE, "<|tool_response>"),
)


class Gemma:
    """A `ToolFormat`."""

    name = "gemma"
    openings: tuple[str, ...] = (_WORDS.opening,)
    first_openings: tuple[str, ...] = ()
    tags: tuple[str, ...] = _WORDS.tags

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        return LiteralCalls(_WORDS, tools)

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        return GemmaGrammar(_WORDS.opening, _WORDS.close).rules(tools, parallel=parallel)


GEMMA: Final = Gemma()
