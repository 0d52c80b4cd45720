"""Refuses the bodies that LiteLLM itself fails on before it asks a provider: with a 500 or a traceback, after retries.

Looks at shapes and kinds alone, so that it costs a long chat some tens of microseconds; the rest is the provider's to
check (`chat_request.py`, `request_params.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.chat_request import OTHER_MEDIA, ROLES
from litellm_exllamav3.request_shapes import refuse_misshapen

_PART_TYPES: Final = frozenset({"text", *OTHER_MEDIA})
_ANTHROPIC_CHOICES: Final = ("auto", "any", "tool", "none")
_DROPPED_BLOCKS: Final = {"document": "documents", "container_upload": "files"}
"""What LiteLLM leaves out of a message without a word, so that the model would answer as if it were not there."""
_TIMEOUTS: Final = ("timeout", "stream_timeout", "request_timeout")
"""LiteLLM has put its headers' values into the body by now."""


def refuse_malformed(body: Mapping[str, Any], call_type: str) -> None:
    """Raises `InvalidRequest`, which names the place. `call_type` is LiteLLM's name of the route."""
    if body.get("custom_llm_provider") is not None:
        # It would send the chat, prompt and all, to another company.
        raise InvalidRequest("custom_llm_provider is for the proxy's config; remove it.", "custom_llm_provider")
    for name in _TIMEOUTS:
        _refuse_no_timeout(body.get(name), name)
    refuse_misshapen(body, call_type)
    if call_type == "acompletion":
        for index, message in enumerate(body["messages"]):
            _refuse_unknown_kinds(message, f"messages[{index}]")
    elif call_type == "aresponses":
        _refuse_dropped_outputs(body["input"])
    elif call_type == "anthropic_messages":
        _refuse_unknown_choice(body.get("tool_choice"))
        for index, message in enumerate(body["messages"]):
            _refuse_dropped_blocks(message.get("content"), f"messages[{index}].content")


def _refuse_no_timeout(seconds: Any, name: str) -> None:
    """0 passes: LiteLLM takes it for no timeout at all."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidRequest(f"{name} must be a number of seconds.", name)
    if seconds < 0 or (isinstance(seconds, float) and not math.isfinite(seconds)):
        raise InvalidRequest(f"{name} must be a positive number of seconds.", name)


def _refuse_unknown_choice(choice: Mapping[str, Any] | None) -> None:
    if choice is not None and choice["type"] not in _ANTHROPIC_CHOICES:
        raise InvalidRequest(f"tool_choice.type must be one of {', '.join(_ANTHROPIC_CHOICES)}.", "tool_choice.type")


def _refuse_unknown_kinds(message: Mapping[str, Any], where: str) -> None:
    """LiteLLM fails on roles, and on parts of a user's message, that it does not know."""
    if message["role"] not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}.", f"{where}.role")
    if message["role"] != "user" or not isinstance(message.get("content"), list):
        return
    for index, part in enumerate(message["content"]):
        if not isinstance(part, dict) or part.get("type") not in _PART_TYPES:
            place = f"{where}.content[{index}].type"
            raise InvalidRequest(f"{place} must be 'text'; this model reads nothing else.", place)


def _refuse_dropped_outputs(items: Any) -> None:
    """LiteLLM passes a tool's images on, those alone that come with their URL."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        output = item.get("output") if isinstance(item, Mapping) else None
        for number, part in enumerate(output if isinstance(output, list) else ()):
            place = f"input[{index}].output[{number}]"
            if isinstance(part, Mapping) and part.get("type") == "input_image" and not part.get("image_url"):
                raise InvalidRequest(f"{place}.image_url is missing; send the image as a data URL.", place)


def _refuse_dropped_blocks(content: Any, where: str) -> None:
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(block, Mapping):
            continue
        place = f"{where}[{index}]"
        media = _DROPPED_BLOCKS.get(str(block.get("type")))
        if media is not None:
            raise InvalidRequest(f"{place}: this model reads text only, not {media}; remove the block.", place)
        if block.get("type") == "image":
            _refuse_dropped_image(block.get("source"), f"{place}.source")
        if block.get("type") == "tool_result":
            _refuse_dropped_blocks(block.get("content"), f"{place}.content")


def _refuse_dropped_image(source: Any, where: str) -> None:
    kind = source.get("type") if isinstance(source, Mapping) else None
    if kind == "base64" and isinstance(source.get("data"), str) and source["data"]:
        return
    if kind == "url" and isinstance(source.get("url"), str) and source["url"]:
        return
    raise InvalidRequest(
        f'{where} must hold the image: {{"type": "base64", "media_type": "image/png", "data": ...}}.', where
    )
