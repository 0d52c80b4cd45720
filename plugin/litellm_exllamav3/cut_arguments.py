"""Arguments of a call that are no JSON object, made one.

LiteLLM parses the arguments of whole answers on `/v1/messages`, whose clients get an object, and fails on any that
are none: those of a call that `max_tokens` cut, or that the model got wrong.
"""

from __future__ import annotations

import json

import pydantic_core


def as_object(arguments: str) -> str:
    """The arguments as they are where they are a JSON object; otherwise one of what can be read of them, values that
    were cut included."""
    try:
        value = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return "{}"
    if not isinstance(value, dict):
        return "{}"
    try:
        json.loads(arguments)
    except ValueError:
        return json.dumps(value, ensure_ascii=False)
    return arguments
