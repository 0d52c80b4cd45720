"""What a route's body says in words of its own, and LiteLLM loses when it translates the body into a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from litellm_exllamav3.reasoning_params import BUDGETS

_OF_CHATS: Final = ("reasoning_effort", "thinking", "enable_thinking", "verbosity", *BUDGETS)


def reasoning_fields(body: Mapping[str, Any], call_type: str) -> dict[str, Any]:
    """How much the answer may think and say, by the names that chats have for it, unchecked.

    `call_type` is LiteLLM's name of the route.
    """
    found = {name: body[name] for name in _OF_CHATS if body.get(name) is not None}
    if call_type == "anthropic_messages":
        _add(found, "reasoning_effort", body.get("output_config"), "effort")
    elif call_type == "aresponses":
        _add(found, "reasoning_effort", body.get("reasoning"), "effort")
        _add(found, "verbosity", body.get("text"), "verbosity")
    return found


def with_lost_fields(params: Mapping[str, Any], litellm_params: Mapping[str, Any], call_type: str) -> Mapping[str, Any]:
    """The parameters as the client's body had them, where LiteLLM has made less of them.

    Nothing is put back where LiteLLM's translation of it is gone: another hook has taken it out then, on purpose.
    """
    request = litellm_params.get("proxy_server_request")
    body = request.get("body") if isinstance(request, Mapping) else None
    if not isinstance(body, Mapping):
        return params
    if call_type == "anthropic_messages":
        return _of_messages(params, body)
    if call_type == "aresponses" and "verbosity" in (fields := reasoning_fields(body, call_type)):
        return {"verbosity": fields["verbosity"], **params}
    return params


def _of_messages(params: Mapping[str, Any], body: Mapping[str, Any]) -> Mapping[str, Any]:
    """LiteLLM makes one of three efforts of a budget, and of thinking that is left to the model; an effort without
    thinking it drops, and of a choice of tools whether they may be called in parallel."""
    found = dict(params)
    if "reasoning_effort" in params or body.get("thinking") is None:
        found.pop("reasoning_effort", None)
        found.update(reasoning_fields(body, "anthropic_messages"))
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is True and "tool_choice" in params:
        found.setdefault("parallel_tool_calls", False)
    return found


def _add(found: dict[str, Any], name: str, outer: Any, inner_name: str) -> None:
    inner = outer.get(inner_name) if isinstance(outer, Mapping) else None
    if inner is not None:
        found[name] = inner
