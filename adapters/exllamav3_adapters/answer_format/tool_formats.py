"""Every form of tool calls by its name in the settings, and which templates write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from exllamav3_adapters.answer_format.deepseek import DEEPSEEK, DEEPSEEK_V31
from exllamav3_adapters.answer_format.gemma import GEMMA
from exllamav3_adapters.answer_format.glm import GLM
from exllamav3_adapters.answer_format.json_in_tags import COMMAND, GRANITE, HERMES, JAMBA, NEMOTRON, PHI
from exllamav3_adapters.answer_format.kimi_k2 import KIMI_K2
from exllamav3_adapters.answer_format.llama3_json import LLAMA3_JSON
from exllamav3_adapters.answer_format.mistral import MISTRAL, MISTRAL_ID, MISTRAL_NAME
from exllamav3_adapters.answer_format.pythonic import PYTHONIC
from exllamav3_adapters.answer_format.tool_format import ToolFormat
from exllamav3_adapters.answer_format.xml_parameters import DEEPSEEK_V4, DEEPSEEK_V32, MINIMAX, QWEN_CODER, SEED

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    format_.name: format_
    for format_ in (
        HERMES,
        COMMAND,
        NEMOTRON,
        PHI,
        GRANITE,
        JAMBA,
        DEEPSEEK,
        DEEPSEEK_V31,
        KIMI_K2,
        MISTRAL,
        MISTRAL_ID,
        MISTRAL_NAME,
        LLAMA3_JSON,
        QWEN_CODER,
        SEED,
        MINIMAX,
        DEEPSEEK_V4,
        DEEPSEEK_V32,
        GLM,
        GEMMA,
        PYTHONIC,
    )
}

OWN_BLOCK: Final = HERMES.name
"""The form of `tool_block.py`, which templates that know no tools are given."""

_MARKS: Final[Sequence[tuple[str, tuple[str, ...]]]] = (
    (COMMAND.name, ("<|START_ACTION|>",)),
    (NEMOTRON.name, ("<TOOLCALL>",)),
    (KIMI_K2.name, ("<|tool_calls_section_begin|>",)),
    (DEEPSEEK.name, ("<｜tool▁calls▁begin｜>", "```json")),
    (DEEPSEEK_V31.name, ("<｜tool▁calls▁begin｜>",)),
    (MISTRAL_ID.name, ("[TOOL_CALLS]", "[CALL_ID]")),
    (MISTRAL_NAME.name, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL.name, ("[TOOL_CALLS]",)),
    (PHI.name, ("<|tool_call|>", "<|/tool_call|>")),
    (PHI.name, ("<|tool|>", "<|/tool|>")),
    (GRANITE.name, ("<|tool_call|>",)),
    (JAMBA.name, ("<tool_calls>",)),
    (DEEPSEEK_V32.name, ("｜DSML｜", "function_calls>")),
    (DEEPSEEK_V4.name, ("｜DSML｜",)),
    (MINIMAX.name, ("<minimax:tool_call>",)),
    (SEED.name, ("<seed:tool_call>",)),
    (QWEN_CODER.name, ("<function=", "<parameter=")),
    (GLM.name, ("<arg_key>",)),
    (GEMMA.name, ("<|tool_call>call:",)),
    (PYTHONIC.name, ("<|tool_call_start|>",)),
    (PYTHONIC.name, ("<|tool_list_start|>",)),
    # From here on, marks that templates of other forms have too.
    (HERMES.name, ("<tool_call>",)),
    (LLAMA3_JSON.name, ("<|python_tag|>",)),
    (LLAMA3_JSON.name, ('{"name": ', '"parameters": ')),
)
"""Texts in a template's source that tell its form, all of them; the first entry that fits counts."""


def find_tool_format(template_sources: Sequence[str]) -> ToolFormat | None:
    """The form that a template's calls have. None: it is not known."""
    for name, marks in _MARKS:
        if any(all(mark in source for mark in marks) for source in template_sources):
            return TOOL_FORMATS[name]
    return None
