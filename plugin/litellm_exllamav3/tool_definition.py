"""One form for a tool's definition, whichever route and client it came by.

A template may write a definition as it is, so the same tool must always come to it with the same keys in the same
order; and what does not describe the tool (`strict`, marks for another cache, ...) does not belong into a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def function_of(tool: Any) -> Mapping[str, Any] | None:
    """What describes the function, of a tool in the form of chats, messages or responses. None: it is no function.

    Anthropic's has its schema under another name, and responses' is flat.
    """
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    if isinstance(function, Mapping):
        return function
    if "input_schema" in tool and tool.get("type", "custom") in ("custom", "function"):
        return {**tool, "parameters": tool["input_schema"]}
    return tool if tool.get("type") == "function" else None


def plain_function(function: Mapping[str, Any]) -> dict[str, Any]:
    """`name`, `description` and `parameters`, in OpenAI's order. What is missing is filled as LiteLLM fills it for some
    routes: an empty description, and the schema of an object without properties."""
    return {
        "name": function.get("name"),
        "description": function.get("description") or "",
        "parameters": _schema(function.get("parameters")),
    }


def _schema(parameters: Any) -> Any:
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping):
        return parameters  # for the engine to refuse
    if "type" in parameters and isinstance(parameters.get("properties"), Mapping):
        return parameters
    return {"type": "object", **parameters, "properties": parameters.get("properties") or {}}
