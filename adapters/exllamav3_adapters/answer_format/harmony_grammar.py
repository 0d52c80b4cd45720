"""What a Harmony answer is held to where a call or a form of its text is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from exllamav3_adapters.answer_format.answer_grammar import answer_grammar, embedded
from exllamav3_adapters.answer_format.harmony_header import (
    ANALYSIS,
    ASSISTANT,
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    START,
)
from exllamav3_adapters.answer_format.lark import json_value, literal, section_of_calls, with_special_tokens
from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.answer_format.tool_format import tool_name, tool_parameters
from exllamav3_adapters.contract import GenerationParams, Grammar, Tool


def harmony_grammar(
    params: GenerationParams, *, opens_reasoning: bool, special_tokens: Mapping[str, int]
) -> Grammar | None:
    """As `answer_grammar`, which it is made with: reasoning ends where the next message's header begins."""
    if params.grammar is not None:
        begin = with_special_tokens(literal(f"{CHANNEL}final{MESSAGE}"), special_tokens)
        source = f"start: {begin} content\ncontent: {embedded(params.grammar)}"
        params = replace(params, grammar=Grammar(kind="lark", source=source))
    reasoning = ReasoningTags(ANALYSIS, f"{END}{START}{ASSISTANT}")
    return answer_grammar(
        HarmonyCalls(), reasoning, params, opens_reasoning=opens_reasoning, special_tokens=special_tokens
    )


class HarmonyCalls:
    """A `CallGrammar`. An answer ends with its first call, so there is never a second one."""

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        return section_of_calls([_call(tool) for tool in tools], before="", between="", after="", parallel=False)


def _call(tool: Tool) -> str:
    head = f"{CHANNEL}commentary to=functions.{tool_name(tool)} {CONSTRAIN}json{MESSAGE}"
    return f"{literal(head)} {json_value(tool_parameters(tool))} {literal(CALL)}"
