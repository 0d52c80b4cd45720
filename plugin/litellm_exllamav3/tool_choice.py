"""Which tools an answer may call: `tool_choice` and `parallel_tool_calls`, in every shape that a route leaves of them.

`any` is Mistral's and Anthropic's word for `required`; the responses route has the function's name beside the type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from exllamav3_adapters.contract import Tool, ToolUse
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.json_values import boolean, json_kind

_Choice = Literal["none", "auto", "required"]
_CHOICES: Final[Mapping[str, _Choice]] = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
_NAMED: Final = ("function", "tool")
_SHAPES: Final = 'none, auto, required or {"type": "function", "function": {"name": ...}}'


def read_tool_use(params: Mapping[str, Any], tools: Sequence[Tool]) -> ToolUse | None:
    """None where there is no tool to call. `tools` are those of the chat, as `read_chat` checked them.

    Raises `InvalidRequest` for a choice that cannot be kept: a tool that is not there, or any where there is none.
    """
    choice, function, allowed = _read_choice(params.get("tool_choice", "auto"))
    parallel = boolean("parallel_tool_calls", params.get("parallel_tool_calls", True)) and _is_parallel(params)
    if not tools:
        if choice == "required":
            raise InvalidRequest("tool_choice demands a call and the request has no tools; send tools.", "tool_choice")
        return None
    for name in filter(None, (function, *(allowed or ()))):
        if name not in _names(tools):
            raise InvalidRequest(
                f"tool_choice names the tool {_short(name)!r}, which is not among tools.", "tool_choice"
            )
    if allowed is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    # Of a named function the hosted providers make one call.
    return ToolUse(tools=tools, choice=choice, function=function, parallel=parallel and function is None)


def _read_choice(value: Any) -> tuple[_Choice, str | None, frozenset[str] | None]:
    """The choice, the function that it names, and the tools that it leaves (None: all)."""
    if isinstance(value, str):
        if value in _CHOICES:
            return _CHOICES[value], None, None
        raise InvalidRequest(f"tool_choice must be {_SHAPES}.", "tool_choice")
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"tool_choice must be {_SHAPES}, not {json_kind(value)}.", "tool_choice")
    kind = value.get("type")
    if kind == "allowed_tools":
        return _read_allowed_tools(value)
    if isinstance(kind, str) and kind in _CHOICES:
        return _CHOICES[kind], None, None
    name = _function_name(value) if kind in _NAMED else None
    if name is None:
        raise InvalidRequest(f"tool_choice must be {_SHAPES}.", "tool_choice")
    return "required", name, None


def _read_allowed_tools(value: Mapping[str, Any]) -> tuple[_Choice, None, frozenset[str]]:
    inner = value.get("allowed_tools", value)
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    tools = inner.get("tools") if isinstance(inner, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(tools, list | tuple) or not tools:
        raise InvalidRequest(
            'tool_choice.allowed_tools must be {"mode": "auto" or "required", "tools": [...]} with at least one tool.',
            "tool_choice",
        )
    names = [_function_name(tool) if isinstance(tool, Mapping) else None for tool in tools]
    if None in names:
        raise InvalidRequest("tool_choice.allowed_tools.tools must name functions alone.", "tool_choice")
    return _CHOICES[mode], None, frozenset(name for name in names if name is not None)


def _function_name(value: Mapping[str, Any]) -> str | None:
    function = value.get("function")
    name = function.get("name") if isinstance(function, Mapping) else value.get("name")
    return name if isinstance(name, str) and name else None


def _is_parallel(params: Mapping[str, Any]) -> bool:
    """Anthropic's clients say it within the choice."""
    choice = params.get("tool_choice")
    return not (isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is True)


def _names(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


def _short(name: str) -> str:
    return name if len(name) <= 64 else f"{name[:61]}..."
