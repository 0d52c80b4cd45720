"""The fake engine's chat template and tokenizer: ChatML text, one token per UTF-8 byte."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from exllamav3_adapters.answer_format.answer_format import AnswerFormat
from exllamav3_adapters.answer_format.find_format import FormatOptions, find_format
from exllamav3_adapters.chat_images import Images, digest_of, encode_with_images, prompt_images
from exllamav3_adapters.contract import Chat, Head, Message, Prompt, Tool
from exllamav3_adapters.errors import InvalidRequest

VOCABULARY_SIZE = 256
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
"""What real templates are given. They are text like any other here."""
_OPEN, _CLOSE = "<|im_start|>", "<|im_end|>\n"
_HEAD_ROLES = ("system", "developer")
_ROLES = (*_HEAD_ROLES, "user", "assistant", "tool")


class OwnRenderer:
    """What `ChatRenderer` is for a real template."""

    def __init__(self, options: FormatOptions) -> None:
        self.answer_format: AnswerFormat = find_format((), options, knows_tools=False)

    def render(self, chat: Chat, images: Images | None = None) -> Prompt:
        """The chat in tokens. Raises `InvalidRequest` for an empty chat, an unknown role or a part that it does not
        know; `images` are the chat's, None where none are read."""
        text = _text(chat.messages, chat.tools, images)
        token_ids = tuple(encode_with_images(text, images or {}, lambda text: list(encode(text))))
        head = self.render_head(Head(messages=_leading(chat.messages), tools=chat.tools))
        # A chat that goes on with an assistant's turn leaves the head a little earlier than one with a user's.
        return Prompt(
            token_ids=token_ids,
            num_head_tokens=_num_shared(token_ids, head.token_ids),
            opens_reasoning=self.answer_format.opens_reasoning(text),
            images=prompt_images(token_ids, images or {}),
        )

    def render_head(self, head: Head) -> Prompt:
        """What two chats with this head and different users' words begin with."""
        one, other = (
            encode(_text([*head.messages, {"role": "user", "content": words}], head.tools)) for words in ("a", "b")
        )
        num_head_tokens = _num_shared(one, other)
        return Prompt(token_ids=one[:num_head_tokens], num_head_tokens=num_head_tokens)


def encode(text: str) -> tuple[int, ...]:
    try:
        return tuple(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("the text holds half of a surrogate pair; send valid Unicode", "messages") from error


def decode(token_ids: Sequence[int]) -> str:
    """The text of a prompt. Raises `InvalidRequest` for a token outside the vocabulary."""
    try:
        return bytes(token_ids).decode(errors="replace")
    except ValueError as error:
        raise InvalidRequest(f"token ids must lie in 0..{VOCABULARY_SIZE - 1}") from error


def last_user_message(text: str) -> str:
    """The last user's words in a rendered chat, or all of `text` where it is no chat."""
    _, opened, rest = text.rpartition(f"{_OPEN}user\n")
    return rest.partition(_CLOSE.strip())[0] if opened else text


def _leading(messages: Sequence[Message]) -> list[Message]:
    count = next((i for i, message in enumerate(messages) if message.get("role") not in _HEAD_ROLES), len(messages))
    return list(messages[:count])


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning, by halves: whole slices compare faster than their items."""
    shared, most = 0, min(len(one), len(other))
    while shared < most:
        middle = (shared + most + 1) // 2
        if one[shared:middle] == other[shared:middle]:
            shared = middle
        else:
            most = middle - 1
    return shared


def _text(messages: Sequence[Message], tools: Sequence[Tool], images: Images | None = None) -> str:
    if not messages:
        raise InvalidRequest("messages is empty; send at least one message", "messages")
    blocks = [(_role(message), _content(message, images)) for message in messages]
    if tools:
        definitions = "".join(f"\n{_sorted_json(tool)}" for tool in tools)
        role, content = blocks.pop(0) if blocks[0][0] in _HEAD_ROLES else ("system", "")
        blocks.insert(0, (role, f"{content}\n<tools>{definitions}\n</tools>"))
    return "".join(f"{_OPEN}{role}\n{content}{_CLOSE}" for role, content in blocks) + f"{_OPEN}assistant\n"


def _role(message: Message) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in _ROLES:
        raise InvalidRequest(f"a message's role must be one of {', '.join(_ROLES)}", "messages")
    return str(role)


def _content(message: Message, images: Images | None) -> str:
    content = message.get("content")
    if content is not None and not isinstance(content, str | Sequence):
        raise InvalidRequest("a message's content must be text or a list of parts", "messages")
    parts = [content] if isinstance(content, str) else content or ()
    text = "".join(_part(part, message["role"], images) for part in parts)
    calls = message.get("tool_calls") or ()
    return text + "".join(f"\n<tool_call>{_sorted_json(call)}</tool_call>" for call in calls)


def _part(part: Any, role: str, images: Images | None) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "image" and images is not None and isinstance(part.get("data"), bytes):
        if role not in ("user", "tool"):
            raise InvalidRequest(f"there is an image in {role}'s message; put it into a user's or a tool's", "messages")
        return images[digest_of(part["data"])].text_alias
    raise InvalidRequest(f"a content part of type {kind!r} is not supported; this model reads text only", "messages")


def _sorted_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
