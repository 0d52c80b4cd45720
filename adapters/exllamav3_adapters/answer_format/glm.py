"""GLM's calls: a name, then keys and values between tags."""

from __future__ import annotations

from typing import Final

from exllamav3_adapters.answer_format.parameter_tags import ParameterTags
from exllamav3_adapters.answer_format.tagged_calls import CallTags

GLM: Final = ParameterTags(
    name="glm",
    words=CallTags(
        section=None,
        section_end="</tool_call>",
        call="<tool_call>",
        name_end="\n",
        call_end="</tool_call>",
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
    ),
    after_key="\n",
)
"""GLM 4.5 and later, Laguna."""
