"""One grammar for a whole answer: its reasoning, and then what the request asks for."""

from __future__ import annotations

from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.answer_format.tool_format import ToolFormat
from exllamav3_adapters.contract import GenerationParams, Grammar


def answer_grammar(
    tools: ToolFormat | None, reasoning: ReasoningTags | None, params: GenerationParams, *, opens_reasoning: bool
) -> Grammar | None:
    """None: nothing is asked of the answer's form."""
    return params.grammar
