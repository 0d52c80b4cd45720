"""Refuses the bodies that LiteLLM itself fails on before it asks a provider: with a 500 or a traceback, after retries.

Looks at shapes alone, so that it costs a long chat some tens of microseconds; the rest is the provider's to check
(`chat_request.py`, `request_params.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.chat_request import NO_TEXT_COMPLETIONS, OTHER_MEDIA, ROLES

_PART_TYPES: Final = frozenset({"text", *OTHER_MEDIA})
_TIMEOUTS: Final = ("timeout", "stream_timeout", "request_timeout")
"""LiteLLM has put its headers' values into the body by now."""


@dataclass(frozen=True, slots=True)
class _Route:
    messages: str
    """The field that holds them."""
    objects: tuple[str, ...]
    """Fields that LiteLLM takes for objects without looking."""


_ROUTES: Final = {
    "acompletion": _Route("messages", ("response_format",)),
    "anthropic_messages": _Route("messages", ("thinking", "tool_choice")),
    "aresponses": _Route("input", ()),
}


def refuse_malformed(body: Mapping[str, Any], call_type: str) -> None:
    """Raises `InvalidRequest`, which names the place. `call_type` is LiteLLM's name of the route."""
    if call_type == "atext_completion":
        raise InvalidRequest(NO_TEXT_COMPLETIONS, "prompt")
    if body.get("custom_llm_provider") is not None:
        # It would send the chat, prompt and all, to another company.
        raise InvalidRequest("custom_llm_provider is for the proxy's config; remove it.", "custom_llm_provider")
    for name in _TIMEOUTS:
        _refuse_no_timeout(body.get(name), name)
    route = _ROUTES.get(call_type)
    if route is None:
        return
    for name in route.objects:
        if not isinstance(body.get(name), dict | None):
            raise InvalidRequest(f"{name} must be an object.", name)
    _refuse_malformed_messages(body.get(route.messages), route.messages, call_type)


def _refuse_no_timeout(seconds: Any, name: str) -> None:
    """0 passes: LiteLLM takes it for no timeout at all."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidRequest(f"{name} must be a number of seconds.", name)
    if seconds < 0 or (isinstance(seconds, float) and not math.isfinite(seconds)):
        raise InvalidRequest(f"{name} must be a positive number of seconds.", name)


def _refuse_malformed_messages(messages: Any, name: str, call_type: str) -> None:
    if isinstance(messages, str) and call_type == "aresponses":
        return
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest(f"{name} must be a list of at least one message.", name)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"{name}[{index}] must be an object.", f"{name}[{index}]")
        if call_type == "acompletion" and message.get("role") not in ROLES:
            where = f"{name}[{index}].role"
            raise InvalidRequest(f"{where} must be one of {', '.join(ROLES)}.", where)
        if call_type == "anthropic_messages" and not isinstance(message.get("role"), str):
            where = f"{name}[{index}].role"
            raise InvalidRequest(f"{where} must be a string, user or assistant.", where)
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            _refuse_malformed_content(content, f"{name}[{index}].content")
            if call_type == "acompletion" and message["role"] == "user":
                _refuse_unknown_parts(content, f"{name}[{index}].content")
            elif call_type == "aresponses":
                _refuse_untyped_parts(content, f"{name}[{index}].content")


def _refuse_malformed_content(content: Any, where: str) -> None:
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of content parts.", where)
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            place = f"{where}[{index}]"
            raise InvalidRequest(f"{place} must be a content part: an object with a type.", place)


def _refuse_untyped_parts(content: list[dict[str, Any]], where: str) -> None:
    for index, part in enumerate(content):
        if not isinstance(part.get("type"), str | None):
            place = f"{where}[{index}].type"
            raise InvalidRequest(f"{place} must be a string.", place)


def _refuse_unknown_parts(content: list[dict[str, Any]], where: str) -> None:
    for index, part in enumerate(content):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _PART_TYPES:
            place = f"{where}[{index}].type"
            raise InvalidRequest(f"{place} must be 'text'; this model reads nothing else.", place)
