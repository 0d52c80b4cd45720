"""The head of a request: its leading system or developer messages, and its tools.

Two views of it. `RequestHead` is what a route's raw body shows before LiteLLM has translated it, for counting.
`contract.Head` is the translated OpenAI form, for the store and the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from exllamav3_adapters.contract import Head, Message, Tool
from litellm_exllamav3.head_variables import head_variables

HEAD_ROLES = ("system", "developer")
_MODEL_ITEMS = frozenset({"reasoning", "item_reference", "compaction"})
"""Types of responses input items that only an earlier turn of the model leaves, calls and their outputs aside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestHead:
    """The head as the client sent it. Holds the body's own objects: read it before the body changes."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any]
    starts_conversation: bool
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of the chat template, as the provider will set them."""


def request_head(body: Mapping[str, Any], call_type: str) -> RequestHead | None:
    """The head in a route's raw body. None where there is none, for other call types, and for malformed bodies."""
    reader = _READERS.get(call_type)
    if reader is None or not isinstance(body, Mapping):
        return None
    found = reader(body)
    if found is None:
        return None
    messages, tools = found
    if not messages and not tools:
        return None
    return RequestHead(
        messages=messages,
        tools=tools,
        starts_conversation=starts_conversation(body, call_type),
        variables=head_variables(body, call_type),
    )


def starts_conversation(body: Mapping[str, Any], call_type: str) -> bool:
    """Whether the model has not answered yet in this chat, so that no earlier request of it has warmed the cache."""
    if not isinstance(body, Mapping):
        return False
    if call_type != "aresponses":
        messages = body.get("messages")
        return _is_list(messages) and not any(
            isinstance(message, Mapping) and message.get("role") in ("assistant", "tool", "function")
            for message in messages
        )
    if body.get("previous_response_id") or body.get("conversation"):
        return False
    items = body.get("input")
    return isinstance(items, str) or (_is_list(items) and not any(map(_is_of_the_model, items)))


def chat_head(
    messages: Sequence[Message], tools: Sequence[Tool] | None, template_variables: Mapping[str, Any] | None = None
) -> Head:
    """The head of a chat in the OpenAI form. Empty where it has neither system messages nor tools."""
    return Head(
        messages=_leading(messages), tools=tuple(tools or ()), template_variables=dict(template_variables or {})
    )


def _leading(messages: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in HEAD_ROLES:
            return tuple(messages[:index])
    return tuple(messages)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _is_of_the_model(item: object) -> bool:
    if not isinstance(item, Mapping):
        return False
    kind = item.get("type")
    if isinstance(kind, str) and (kind in _MODEL_ITEMS or kind.endswith(("_call", "_call_output"))):
        return True
    return item.get("role") == "assistant"


_Found = tuple[Sequence[Mapping[str, Any]], Sequence[Any]]


def _read_tools(body: Mapping[str, Any], *keys: str) -> Sequence[Any] | None:
    tools: list[Any] = []
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        if not _is_list(value):
            return None
        tools.extend(value)
    return tools


def _read_chat(body: Mapping[str, Any]) -> _Found | None:
    messages, tools = body.get("messages"), _read_tools(body, "functions", "tools")
    if not _is_list(messages) or tools is None:
        return None
    return _leading(messages), tools


def _read_anthropic(body: Mapping[str, Any]) -> _Found | None:
    messages, tools, system = body.get("messages"), _read_tools(body, "tools"), body.get("system")
    if not _is_list(messages) or tools is None:
        return None
    if system is None or system == "" or system == []:
        return (), tools
    if not isinstance(system, str) and not _is_list(system):
        return None
    return ({"role": "system", "content": system},), tools


def _read_responses(body: Mapping[str, Any]) -> _Found | None:
    items, tools, instructions = body.get("input"), _read_tools(body, "tools"), body.get("instructions")
    if tools is None or not (isinstance(items, str) or _is_list(items)):
        return None
    messages = () if isinstance(items, str) else _leading(items)
    if instructions is None or instructions == "":
        return messages, tools
    if not isinstance(instructions, str):
        return None
    return ({"role": "system", "content": instructions}, *messages), tools


_READERS = {"acompletion": _read_chat, "anthropic_messages": _read_anthropic, "aresponses": _read_responses}
