"""Families whose calls and parameters stand between tags like those of XML."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from exllamav3_adapters.answer_format.parameter_tags import ParameterTags
from exllamav3_adapters.answer_format.tagged_calls import CallTags

QWEN_CODER: Final = ParameterTags(
    name="qwen3_coder",
    words=CallTags(
        section="<tool_call>",
        section_end="</tool_call>",
        call="<function=",
        name_end=">",
        call_end="</function>",
        key="<parameter=",
        key_end=">",
        value="",
        value_end="</parameter>",
        in_lines=True,
    ),
)
"""Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5. The outer tag is at times forgotten."""

SEED: Final = ParameterTags(
    name="seed_oss",
    words=replace(QWEN_CODER.words, section="<seed:tool_call>", section_end="</seed:tool_call>", in_lines=False),
)
"""Seed-OSS."""

MINIMAX: Final = ParameterTags(
    name="minimax",
    words=CallTags(
        section="<minimax:tool_call>",
        section_end="</minimax:tool_call>",
        call='<invoke name="',
        name_end='">',
        call_end="</invoke>",
        key='<parameter name="',
        key_end='"',
        value=">",
        value_end="</parameter>",
    ),
    one_section=True,
)
"""MiniMax M2."""

_DSML: Final = "｜DSML｜"
DEEPSEEK_V4: Final = ParameterTags(
    name="deepseek_v4",
    words=CallTags(
        section=f"<{_DSML}tool_calls>",
        section_end=f"</{_DSML}tool_calls>",
        call=f'<{_DSML}invoke name="',
        name_end='">',
        call_end=f"</{_DSML}invoke>",
        key=f'<{_DSML}parameter name="',
        key_end='"',
        value=">",
        value_end=f"</{_DSML}parameter>",
        part=_DSML,
    ),
    one_section=True,
    types_strings=True,
)
"""DeepSeek V4. Its tags hold a sign of its own, so that no text looks like them."""

DEEPSEEK_V32: Final = replace(
    DEEPSEEK_V4,
    name="deepseek_v32",
    words=replace(DEEPSEEK_V4.words, section=f"<{_DSML}function_calls>", section_end=f"</{_DSML}function_calls>"),
)
"""DeepSeek V3.2."""
