"""What LiteLLM loses of a request when it translates a route's body into a chat, taken from the body itself.

Nothing is put back where LiteLLM's translation of it is gone: another hook has taken it out then, on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_lost_fields(params: Mapping[str, Any], litellm_params: Mapping[str, Any], call_type: str) -> Mapping[str, Any]:
    """The parameters with what the client's body had besides, by the names that chats have for it.

    `call_type` is LiteLLM's name of the route. What is put back is as unchecked as the rest.
    """
    request = litellm_params.get("proxy_server_request")
    body = request.get("body") if isinstance(request, Mapping) else None
    if not isinstance(body, Mapping):
        return params
    if call_type == "anthropic_messages":
        return _of_messages(params, body)
    return _of_responses(params, body) if call_type == "aresponses" else params


def _of_messages(params: Mapping[str, Any], body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A budget becomes one of three efforts, and a choice of tools loses whether they may be called in parallel."""
    found = dict(params)
    thinking = body.get("thinking")
    if isinstance(thinking, Mapping) and "reasoning_effort" in params:
        found["thinking"] = thinking
        config = body.get("output_config")
        if thinking.get("type") == "adaptive" and not (isinstance(config, Mapping) and config.get("effort")):
            # The model is to decide, and the effort is LiteLLM's.
            del found["reasoning_effort"]
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is True and "tool_choice" in params:
        found.setdefault("parallel_tool_calls", False)
    return found


def _of_responses(params: Mapping[str, Any], body: Mapping[str, Any]) -> Mapping[str, Any]:
    text = body.get("text")
    if isinstance(text, Mapping) and text.get("verbosity") is not None:
        return {"verbosity": text["verbosity"], **params}
    return params
