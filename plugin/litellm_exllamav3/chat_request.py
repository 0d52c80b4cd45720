"""The chat of one request: LiteLLM's messages and tools, checked and reduced to what a chat template reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from exllamav3_adapters.contract import Chat, Message, Tool
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.image_sources import image_part
from litellm_exllamav3.tool_definition import plain_function

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")

_MESSAGE_KEYS: Final = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
"""What templates read. The rest (`cache_control`, provider fields, ...) would make equal heads differ."""

TEXT_PARTS: Final = ("text", "input_text", "output_text")
IMAGE_PARTS: Final = ("image_url", "input_image")
_LEFT_OUT_PARTS: Final = ("thinking", "redacted_thinking")
"""Anthropic's own form of reasoning, which LiteLLM also hands over as `reasoning_content`."""
OTHER_MEDIA: Final = {
    "image_url": "images",
    "image": "images",
    "input_image": "images",
    "input_audio": "audio",
    "video_url": "video",
    "audio_url": "audio",
    "file": "files",
    "input_file": "files",
    "document": "documents",
}
"""Types of content parts that clients send, and what a text model says it does not read."""

_RESERVED_VARIABLES: Final = frozenset({"messages", "tools", "add_generation_prompt"})


def read_chat(messages: Any, params: Mapping[str, Any], *, with_images: bool = False) -> Chat:
    """The chat in the OpenAI form. `params` are the request's flat parameters, of which `tools` and
    `chat_template_kwargs` belong to the chat. `with_images`: the model reads them; they are still URLs afterwards, for
    `ImageSources.read`. Raises `InvalidRequest`, which names the place and never quotes."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidRequest("messages must be a list of messages.", "messages")
    if not messages:
        raise InvalidRequest("messages must not be empty; send at least one message.", "messages")
    return Chat(
        messages=[_message(message, f"messages[{i}]", with_images) for i, message in enumerate(messages)],
        tools=_tools(params.get("tools")),
        template_variables=_template_variables(params.get("chat_template_kwargs")),
    )


def _message(message: Any, where: str, with_images: bool) -> Message:
    if hasattr(message, "model_dump"):  # LiteLLM's own message type, when called as a library
        message = message.model_dump(exclude_none=True)
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object with a role and content.", where)
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}.", f"{where}.role")
    kept = {key: message[key] for key in _MESSAGE_KEYS if message.get(key) is not None}
    if "content" in kept:
        kept["content"] = _content(kept["content"], f"{where}.content", with_images)
    elif role != "assistant":
        raise InvalidRequest(f"{where}.content is missing.", f"{where}.content")
    else:
        kept["content"] = None
    if "tool_calls" in kept:
        kept["tool_calls"] = _tool_calls(kept["tool_calls"], f"{where}.tool_calls")
    return kept


def _content(content: Any, where: str, with_images: bool) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"{where} must be a string or a list of content parts.", where)
    parts = [_part(part, f"{where}[{i}]", with_images) for i, part in enumerate(content)]
    return [part for part in parts if part is not None]


def _part(part: Any, where: str, with_images: bool) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{where} must be a content part: an object with a type.", where)
    kind = part.get("type")
    if kind in _LEFT_OUT_PARTS:
        return None
    if kind in TEXT_PARTS:
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}.text must be a string.", f"{where}.text")
        return {"type": "text", "text": part["text"]}
    if with_images and kind in IMAGE_PARTS:
        return image_part(part.get("image_url"), f"{where}.image_url")
    media = OTHER_MEDIA.get(kind) if isinstance(kind, str) else None
    if media is not None:
        if with_images and media == "images":
            raise InvalidRequest(f"{where}: send the image as a part of type 'image_url'.", where)
        reads = "text and images" if with_images else "text"
        raise InvalidRequest(f"{where}: this model reads {reads} only, not {media}; remove the part.", where)
    types = "'text' or 'image_url'" if with_images else "'text'"
    raise InvalidRequest(f"{where}.type must be {types}; this model reads nothing else.", f"{where}.type")


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidRequest(f"{where} must be a list of tool calls.", where)
    kept: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        if hasattr(call, "model_dump"):
            call = call.model_dump(exclude_none=True)
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"{where}[{i}].function must name the called function.", f"{where}[{i}].function")
        kept.append(
            {
                **({"id": call["id"]} if call.get("id") is not None else {}),
                "type": "function",
                "function": {"name": function["name"], "arguments": function.get("arguments", "{}")},
            }
        )
    return kept


def _tools(tools: Any) -> Sequence[Tool]:
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise InvalidRequest("tools must be a list of tool definitions.", "tools")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidRequest(
                f'tools[{i}] must be {{"type": "function", "function": {{"name": ...}}}}; '
                "tools that a provider runs itself do not exist here.",
                f"tools[{i}]",
            )
        _check_parameters(function.get("parameters"), f"tools[{i}].function.parameters")
    return [{"type": "function", "function": plain_function(tool["function"])} for tool in tools]


def _check_parameters(parameters: Any, where: str) -> None:
    """Whatever else they are, a call's arguments are an object: clients read them as one."""
    kinds = parameters.get("type") if isinstance(parameters, Mapping) else None
    if kinds is not None and kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise InvalidRequest(f"{where}.type must be 'object'.", f"{where}.type")


def _template_variables(variables: Any) -> Mapping[str, Any]:
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise InvalidRequest("chat_template_kwargs must be an object.", "chat_template_kwargs")
    for name in variables:
        if name in _RESERVED_VARIABLES:
            raise InvalidRequest(f"chat_template_kwargs must not set {name}.", f"chat_template_kwargs.{name}")
    return dict(variables)
