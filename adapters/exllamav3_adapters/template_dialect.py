"""What a template takes, and how a chat is put into that form.

Templates differ in what they know: system turns, tools, content parts, tool call arguments as text. `Dialect` holds
what `dialect_trials.py` found out by rendering; `adapt` changes a chat into what the template can express without
losing any of its text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exllamav3_adapters.chat_messages import PlainMessage, text_of
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.tool_block import tool_block, tool_calls_as_text, tool_result_as_text

SHORT_ID_LENGTH = 9
"""What Mistral's templates ask of a tool call's id."""
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """What one template takes. The defaults are those of a template that only knows user and assistant turns."""

    system_role: bool = False
    several_systems: bool = False
    """More than one leading system message."""
    later_systems: bool = False
    """System messages after the first user turn, in their place."""
    developer_role: bool = False
    part_roles: frozenset[str] = frozenset()
    """Roles whose content may be a list of parts."""
    tools: bool = False
    empty_tools: bool = False
    """A chat without tools needs an empty list of them; otherwise None, as transformers gives it."""
    tool_history: bool = False
    """Tool calls and their results."""
    object_arguments: bool = True
    """Arguments of a call as an object; otherwise as JSON text."""
    text_arguments: bool = False
    """Arguments that are no JSON do not break it."""
    null_content: bool = False
    """Content that is None, beside tool calls; otherwise the empty string."""
    short_call_ids: bool = False
    """Ids of tool calls must have nine letters or digits."""
    repeated_turns: bool = True
    """Two turns of the user, or of the assistant, one after the other."""
    user_after_result: bool = True
    """A turn of the user behind a tool's result."""
    moving_head: bool = False
    """Later turns move the system text or the tools: only the first request of a conversation has the whole head."""


def adapt(messages: Sequence[PlainMessage], tools: Sequence[dict[str, Any]], dialect: Dialect) -> list[PlainMessage]:
    """The chat in the template's dialect, as a new list. Raises `InvalidRequest`.

    Where the template knows no tools, they are in the messages afterwards and must not be given to it.
    """
    as_text = bool(tools) and not dialect.tools
    adapted = [_known_role(message, dialect) for message in messages]
    if as_text or not dialect.tool_history:
        adapted = _tool_history_as_text(adapted)
    else:
        adapted = [_native_tool_message(message, dialect, index) for index, message in enumerate(adapted)]
    if as_text:
        adapted = _with_leading_system(adapted, tool_block(tools))
    if not dialect.system_role:
        adapted = _systems_in_user_turns(adapted)
    else:
        count = count_leading_systems(adapted)
        lead, later = adapted[:count], adapted[count:]
        lead = lead if dialect.several_systems else _one_system(lead)
        adapted = lead + (later if dialect.later_systems else _systems_in_user_turns(later))
    if not dialect.user_after_result:
        adapted = _joined_turns(adapted, ("tool", "user"))
    if not dialect.repeated_turns:
        adapted = _joined_turns(_joined_turns(adapted, ("user", "user")), ("assistant", "assistant"))
    return [_known_content(message, dialect) for message in adapted]


def count_leading_systems(messages: Sequence[PlainMessage]) -> int:
    """How many messages come before the conversation proper: those of the system and of the developer."""
    for index, message in enumerate(messages):
        if message["role"] not in ("system", "developer"):
            return index
    return len(messages)


def _known_role(message: PlainMessage, dialect: Dialect) -> PlainMessage:
    if message["role"] == "developer" and not dialect.developer_role:
        return {**message, "role": "system"}
    return message


def _known_content(message: PlainMessage, dialect: Dialect) -> PlainMessage:
    content = message["content"]
    if content is None and not dialect.null_content:
        return {**message, "content": ""}
    if isinstance(content, list) and message["role"] not in dialect.part_roles:
        return {**message, "content": text_of(content)}
    return message


def _native_tool_message(message: PlainMessage, dialect: Dialect, index: int) -> PlainMessage:
    if message["role"] == "tool" and dialect.short_call_ids:
        return {**message, "tool_call_id": short_call_id(str(message.get("tool_call_id", "")))}
    if "tool_calls" not in message:
        return message
    calls = [
        _native_call(call, dialect, f"messages[{index}].tool_calls[{number}]")
        for number, call in enumerate(message["tool_calls"])
    ]
    return {**message, "tool_calls": calls}


def _native_call(call: dict[str, Any], dialect: Dialect, where: str) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str) and not dialect.text_arguments:
        raise InvalidRequest(
            f"{where}.function.arguments is not a JSON object, and the model's chat template takes nothing else; "
            "correct it or remove the call",
            "messages",
        )
    if not isinstance(arguments, str) and not dialect.object_arguments:
        arguments = json.dumps(arguments, ensure_ascii=False)
    native = {**call, "function": {**call["function"], "arguments": arguments}}
    if dialect.short_call_ids:
        native["id"] = short_call_id(str(call.get("id", "")))
    return native


def short_call_id(call_id: str) -> str:
    """Nine letters and digits, the same for the same id, so that calls and results still match."""
    if len(call_id) == SHORT_ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).digest())
    digits = []
    for _ in range(SHORT_ID_LENGTH):
        number, digit = divmod(number, len(_BASE62))
        digits.append(_BASE62[digit])
    return "".join(digits)


def _tool_history_as_text(messages: Sequence[PlainMessage]) -> list[PlainMessage]:
    adapted: list[PlainMessage] = []
    in_results = False
    for message in messages:
        if message["role"] == "tool":
            result = tool_result_as_text(text_of(message["content"]))
            if in_results:
                adapted[-1] = _joined(adapted[-1], result, "\n")
            else:
                adapted.append({"role": "user", "content": result})
            in_results = True
            continue
        if in_results and message["role"] == "user":
            # One turn: templates that know no tools are also those that insist on alternating turns.
            adapted[-1] = _joined(adapted[-1], text_of(message["content"]), "\n")
        elif "tool_calls" in message:
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            text = tool_calls_as_text(text_of(message["content"]), message["tool_calls"])
            adapted.append({**rest, "content": text})
        else:
            adapted.append(message)
        in_results = False
    return adapted


def _with_leading_system(messages: Sequence[PlainMessage], text: str) -> list[PlainMessage]:
    """`text` after the last leading system message."""
    count = count_leading_systems(messages)
    if not count:
        return [{"role": "system", "content": text}, *messages]
    return [*messages[: count - 1], _joined(messages[count - 1], text), *messages[count:]]


def _one_system(messages: list[PlainMessage]) -> list[PlainMessage]:
    if len(messages) < 2:
        return messages
    return [{**messages[0], "content": "\n\n".join(text_of(message["content"]) for message in messages)}]


def _systems_in_user_turns(messages: Sequence[PlainMessage]) -> list[PlainMessage]:
    """Each system text at the beginning of the user turn that follows it; at the end of a chat, as a turn."""
    adapted: list[PlainMessage] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            waiting.append(text_of(message["content"]))
        elif message["role"] == "user" and waiting:
            adapted.append({**message, "content": _paragraphs(*waiting, text_of(message["content"]))})
            waiting = []
        else:
            adapted.append(message)
    if waiting:
        adapted.append({"role": "user", "content": _paragraphs(*waiting)})
    return adapted


def _joined_turns(messages: Sequence[PlainMessage], roles: tuple[str, str]) -> list[PlainMessage]:
    """Where turns of these roles follow each other, the text of the second at the end of the first, which keeps its
    role. Calls stay in turns of their own."""
    adapted: list[PlainMessage] = []
    for message in messages:
        if adapted and (adapted[-1]["role"], message["role"]) == roles and not _has_calls(adapted[-1], message):
            adapted[-1] = _joined(adapted[-1], text_of(message["content"]))
        else:
            adapted.append(message)
    return adapted


def _has_calls(*messages: PlainMessage) -> bool:
    return any("tool_calls" in message for message in messages)


def _joined(message: PlainMessage, text: str, separator: str = "\n\n") -> PlainMessage:
    before = text_of(message["content"])
    return {**message, "content": f"{before}{separator}{text}" if before and text else before or text}


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
