"""Takes a client's messages and tools into plain JSON values that a template can rely on, or refuses them.

What comes out is a copy: keys with null values are dropped (templates take a key that is there as a key that is
set), `content` is a string, a list of parts or, beside tool calls, None; tool call arguments are an object, or
a string where they are not JSON. A part is `{"type": "text", "text": ...}`, or an image, `{"type": "image", "data":
...}`, until `chat_images.py` has put a text in its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from exllamav3_adapters.errors import InvalidRequest

PlainMessage = dict[str, Any]

MAX_DEPTH = 64
"""Levels of lists and objects in a message or a tool."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA_PARTS = ("image", "audio", "video", "file", "document")
_IMAGE_ROLES = ("user", "tool", "function")
_ARTICLES = {"system": "a system", "developer": "a developer", "assistant": "an assistant"}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def plain_messages(messages: Sequence[Mapping[str, Any]], *, with_images: bool = False) -> list[PlainMessage]:
    """`with_images`: the model reads images. Raises `InvalidRequest`, which names the message by its position."""
    return [_plain_message(message, f"messages[{index}]", with_images) for index, message in enumerate(messages)]


def plain_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools with every key that templates read without asking. Raises `InvalidRequest`."""
    return [_plain_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def text_of(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Plain content as one string. Parts are paragraphs of their own, as clients mean them."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content)


def _plain_message(message: Mapping[str, Any], where: str, with_images: bool) -> PlainMessage:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object with role and content", "messages")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role is {str(role)[:40]!r}; use one of {', '.join(ROLES)}", "messages")
    plain = {
        key: plain_json(value, f"{where}.{key}", "messages")
        for key, value in message.items()
        if value is not None and key != "content"
    }
    calls = plain.pop("tool_calls", None)
    if calls:
        if role != "assistant":
            raise InvalidRequest(f"{where}: only an assistant message can have tool_calls", "messages")
        plain["tool_calls"] = _plain_tool_calls(calls, f"{where}.tool_calls")
    if role == "function":  # what OpenAI called a tool's result at first
        plain["role"] = "tool"
    plain["content"] = _plain_content(message.get("content"), role, bool(calls), f"{where}.content", with_images)
    _alias_reasoning(plain)
    return plain


def _plain_content(
    content: Any, role: str, has_calls: bool, where: str, with_images: bool
) -> str | list[dict[str, Any]] | None:
    if content is None:
        if role in ("system", "developer", "user"):
            raise InvalidRequest(f"{where} is missing; a {role} message needs text", "messages")
        return None if has_calls else ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidRequest(f"{where} must be a string or a list of text parts", "messages")
    parts = [_plain_part(part, role, f"{where}[{index}]", with_images) for index, part in enumerate(content)]
    return parts or ""


def _plain_part(part: Any, role: str, where: str, with_images: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f'{where} must be a part such as {{"type": "text", "text": "..."}}', "messages")
    if kind in _TEXT_PARTS:
        text = part.get(_TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}.{_TEXT_PARTS[kind]} must be a string", "messages")
        return {"type": "text", "text": text}
    if with_images and kind == "image":
        return _plain_image(part, role, where)
    if any(medium in kind for medium in _MEDIA_PARTS):
        takes = "text and images" if with_images else "text"
        raise InvalidRequest(
            f"{where} is of type {kind[:40]!r}, but this model takes {takes} only; remove it", "messages"
        )
    raise InvalidRequest(
        f"{where} is of type {kind[:40]!r}, which is not known; this model takes text parts", "messages"
    )


def _plain_image(part: Mapping[str, Any], role: str, where: str) -> dict[str, Any]:
    if role not in _IMAGE_ROLES:
        raise InvalidRequest(
            f"{where} is an image in {_ARTICLES[role]} message; put it into a user's or a tool's", "messages"
        )
    if not isinstance(part.get("data"), bytes) or not part["data"]:
        raise InvalidRequest(f"{where}.data must be the bytes of an image file", "messages")
    return {"type": "image", "data": part["data"]}


def _plain_tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where} must be a list", "messages")
    return [_plain_tool_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _plain_tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where} must be an object with function.name and function.arguments", "messages")
    arguments = _plain_arguments(function.get("arguments"), f"{where}.function.arguments")
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _plain_arguments(arguments: Any, where: str) -> dict[str, Any] | str:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str):
        raise InvalidRequest(f"{where} must be a JSON object, as a string or not", "messages")
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        # A model wrote this once, and the client sends it back for good: the chat must go on.
        return arguments
    if value is None:
        return {}
    return plain_json(value, where, "messages") if isinstance(value, dict) else arguments


def _alias_reasoning(message: PlainMessage) -> None:
    """Earlier reasoning under the names that templates read, as transformers gives it to them."""
    for key in _REASONING_KEYS:
        if key in message:
            message.setdefault("thinking", message[key])
            message["reasoning_content"] = message[key]
            return


def _plain_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequest(
            f'{where} must have the form {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}',
            "tools",
        )
    if tool.get("type", "function") != "function":
        raise InvalidRequest(
            f"{where}.type is {str(tool['type'])[:40]!r}; this model takes tools of type 'function'", "tools"
        )
    plain: dict[str, Any] = plain_json(function, f"{where}.function", "tools")
    parameters = plain.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"{where}.function.parameters must be a JSON Schema object", "tools")
    if "type" not in parameters or not isinstance(parameters.get("properties"), dict):
        parameters = {"type": "object", **parameters, "properties": parameters.get("properties") or {}}
    if "description" not in plain or "parameters" not in plain:
        plain = {"name": plain.pop("name"), "description": plain.pop("description", ""), **plain}
    plain["description"] = plain["description"] or ""
    plain["parameters"] = parameters
    rest = {key: plain_json(value, where, "tools") for key, value in tool.items() if key != "function"}
    return {"type": "function", **rest, "function": plain}


def plain_json(value: Any, where: str, param: str, depth: int = 0) -> Any:
    """A copy of `value` in JSON's types. Raises `InvalidRequest`, naming `where`, for anything that JSON has not."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{where} is nested more than {MAX_DEPTH} levels deep", param)
    if isinstance(value, Mapping):
        return {str(key): plain_json(item, where, param, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item, where, param, depth + 1) for item in value]
    raise InvalidRequest(f"{where} holds a value of type {type(value).__name__}, which is not JSON", param)
