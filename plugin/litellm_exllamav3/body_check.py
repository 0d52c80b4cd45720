"""Refuses the bodies that LiteLLM itself fails on before it asks a provider: with a 500 or a traceback, after retries.

Looks at shapes alone, so that it costs a long chat some tens of microseconds; the rest is the provider's to check
(`chat_request.py`, `request_params.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.chat_request import NO_TEXT_COMPLETIONS, OTHER_MEDIA, ROLES

_PART_TYPES: Final = frozenset({"text", *OTHER_MEDIA})


def refuse_malformed(body: Mapping[str, Any], call_type: str) -> None:
    """Raises `InvalidRequest`, which names the place. `call_type` is LiteLLM's name of the route."""
    if call_type == "atext_completion":
        raise InvalidRequest(NO_TEXT_COMPLETIONS, "prompt")
    if body.get("custom_llm_provider") is not None:
        # It would send the chat, prompt and all, to another company.
        raise InvalidRequest("custom_llm_provider is for the proxy's config; remove it.", "custom_llm_provider")
    timeout = body.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise InvalidRequest("timeout must be a number of seconds.", "timeout")
    if call_type == "acompletion":
        _refuse_malformed_chat(body)


def _refuse_malformed_chat(body: Mapping[str, Any]) -> None:
    response_format = body.get("response_format")
    if response_format is not None and not isinstance(response_format, Mapping):
        raise InvalidRequest("response_format must be an object with a type.", "response_format")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequest("messages must be a list of messages.", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{index}] must be an object with a role and content.", f"messages[{index}]")
        if message.get("role") not in ROLES:
            where = f"messages[{index}].role"
            raise InvalidRequest(f"{where} must be one of {', '.join(ROLES)}.", where)
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            _refuse_malformed_content(content, f"messages[{index}].content", message["role"])


def _refuse_malformed_content(content: Any, where: str, role: str) -> None:
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of content parts.", where)
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            place = f"{where}[{index}]"
            raise InvalidRequest(f"{place} must be a content part: an object with a type.", place)
        kind = part.get("type")
        if role == "user" and (not isinstance(kind, str) or kind not in _PART_TYPES):
            place = f"{where}[{index}].type"
            raise InvalidRequest(f"{place} must be 'text'; this model reads nothing else.", place)
