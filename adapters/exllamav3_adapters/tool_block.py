"""Tools as plain text, for templates that know none: the Hermes form, which most open models have seen.

The system turn lists the tools and says how to call one; a call is JSON between `<tool_call>` tags in the
assistant's turn, and its result stands between `<tool_response>` tags in a user's turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = (
    "# Tools\n\n"
    "You can call functions to help with the user's request. "
    "Each line between <tools> and </tools> describes one function, with its parameters as JSON Schema:\n"
)
_INSTRUCTIONS = (
    "\n\nTo call a function, write a JSON object with its name and its arguments between <tool_call> tags, "
    "one such block a call:\n"
    '<tool_call>\n{"name": "<function name>", "arguments": {"<parameter>": <value>}}\n</tool_call>\n'
    "The results come back between <tool_response> tags."
)


def tool_block(tools: Sequence[Mapping[str, Any]]) -> str:
    """What the system turn says about `tools`, which are in the OpenAI form."""
    lines = "\n".join(_json(tool) for tool in tools)
    return f"{_INTRODUCTION}<tools>\n{lines}\n</tools>{_INSTRUCTIONS}"


def tool_calls_as_text(content: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """An assistant's turn: what it said, then its calls. Arguments are objects, or text that is no JSON."""
    blocks = [
        f"<tool_call>\n{_json({'name': call['function']['name'], 'arguments': call['function']['arguments']})}\n"
        "</tool_call>"
        for call in calls
    ]
    return "\n".join([content, *blocks] if content else blocks)


def tool_result_as_text(content: str) -> str:
    """A result as a part of a user's turn."""
    return f"<tool_response>\n{content}\n</tool_response>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
