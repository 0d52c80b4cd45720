"""A request on its way to one of our deployments, made so that LiteLLM hands all of it on.

LiteLLM checks parameters against a fixed list for every custom provider, and a provider cannot add to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

ALLOWED: Final = (
    "reasoning_effort",
    "thinking",
    "verbosity",
    "context_management",
    "max_tool_calls",
    "prompt_cache_options",
)
"""OpenAI's parameters that are not on the list. The provider accepts or refuses them itself."""


def with_allowed_params(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments, those in which LiteLLM would refuse a parameter that is ours to judge put right."""
    allowed = kwargs.get("allowed_openai_params")
    own = allowed if isinstance(allowed, list | tuple) else ()
    return {**_without_allowed_tools(kwargs), "allowed_openai_params": list(dict.fromkeys((*own, *ALLOWED)))}


def _without_allowed_tools(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """`allowed_tools`, which LiteLLM knows of three providers alone, says the same as a shorter list of tools."""
    choice, tools = kwargs.get("tool_choice"), kwargs.get("tools")
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools" or not isinstance(tools, list):
        return kwargs
    inner = choice.get("allowed_tools", choice)  # chats nest what responses have flat
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    listed = inner.get("tools") if isinstance(inner, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(listed, list):
        return kwargs  # malformed, and LiteLLM says how
    names = _names(listed)
    allowed = [tool for tool in tools if _name(tool) in names]
    # What is allowed and not there is for the provider to refuse.
    return {**kwargs, "tools": allowed, "tool_choice": mode} if names <= _names(tools) and allowed else kwargs


def _names(tools: Sequence[Any]) -> set[str | None]:
    return {_name(tool) for tool in tools}


def _name(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None
