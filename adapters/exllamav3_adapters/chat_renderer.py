"""Renders chats and heads to tokens with a model's chat template."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from operator import eq
from typing import Any

from exllamav3_adapters.answer_format.find_format import FormatOptions, find_format
from exllamav3_adapters.chat_images import (
    Images,
    count_images,
    encode_with_images,
    prompt_images,
    refuse_hidden_images,
    with_aliases,
)
from exllamav3_adapters.chat_messages import PlainMessage, plain_json, plain_messages, plain_tools
from exllamav3_adapters.chat_template import ChatTemplate
from exllamav3_adapters.contract import Chat, Head, Prompt
from exllamav3_adapters.conversation_tokens import ConversationTokens
from exllamav3_adapters.dialect_trials import find_dialect
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.template_dialect import Dialect, adapt, count_leading_systems
from exllamav3_adapters.template_sandbox import (
    RESERVED_VARIABLES,
    CompiledTemplate,
    Rendering,
    TemplateFault,
    TemplateRefused,
)

logger = logging.getLogger("exllamav3_adapters")

HEAD_CACHE_ENTRIES = 64
_PROBE_TEXTS = ("Alpha", "7 beta", "")
"""Messages that follow a head when it is rendered. They begin differently, and the last one is empty because some
templates write an empty turn differently. The first must render; the others are left out where they do not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PlainChat:
    messages: list[PlainMessage]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]
    num_images: int = 0
    """Which are texts in its messages by now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _CachedHead:
    token_ids: tuple[int, ...]
    clock_reads: Mapping[str, str]

    def is_current(self, now: datetime) -> bool:
        """Whether the template would read the same from the clock at `now`."""
        return all(now.strftime(format_) == result for format_, result in self.clock_reads.items())


class ChatRenderer:
    """Chats to tokens. Not safe for several threads: an engine calls it on the one thread of its tokenizer.

    `encode` turns text into tokens, special tokens recognised and no beginning-of-sequence token added: a template
    writes that itself, or means that there is none, whatever the tokenizer's `add_bos_token` says (transformers and
    the engines that follow it do the same, so this is what the model was trained on). `now` is the clock that
    templates read; one call reads it once.

    `conversations` is told of the answers; a prompt that goes on from one keeps its tokens.
    """

    def __init__(
        self,
        template: ChatTemplate,
        special_tokens: Mapping[str, str],
        encode: Callable[[str], list[int]],
        now: Callable[[], datetime] = datetime.now,
        format_options: FormatOptions | None = None,
    ) -> None:
        """Raises `LoadFailed` where `format_options` name what does not exist."""
        self._template = template
        self._special_tokens = dict(special_tokens)
        self._encode_text = encode
        self._now = now
        self.conversations = ConversationTokens()
        self._heads: OrderedDict[bytes, _CachedHead] = OrderedDict()
        self._dialects: dict[CompiledTemplate, Dialect] = {}
        for compiled in filter(None, (template.default, template.tool_use)):
            self._dialects[compiled] = find_dialect(compiled, special_tokens)
        self.answer_format = find_format(
            [compiled.source for compiled in self._dialects],
            format_options or FormatOptions(),
            knows_tools=self.dialect(with_tools=True).tools,
        )
        if any(dialect.moving_head for dialect in self._dialects.values()):
            logger.info(
                "the chat template in %s moves the system text or the tools with later turns: "
                "only the first request of a conversation reuses its whole head",
                template.origin,
            )

    def dialect(self, *, with_tools: bool = False) -> Dialect:
        """What the template takes that renders chats with or without tools."""
        return self._dialects[self._compiled(with_tools)]

    def render(self, chat: Chat, images: Images | None = None) -> Prompt:
        """The chat in tokens, up to where the answer begins. Raises `InvalidRequest` where it cannot be rendered.

        `num_head_tokens` counts the tokens that it shares with the rendering of its own head, under its own
        template variables. `images` are all of the chat's, prepared; None: the model reads text only.
        """
        plain = _plain_chat(chat, images)
        if not plain.messages:
            raise InvalidRequest("messages is empty; send at least one message", "messages")
        now = self._now()
        text = self._render(plain, now).text
        token_ids = self._encode_prompt(text, images or {})
        found = prompt_images(token_ids, images or {})
        refuse_hidden_images(plain.num_images, len(found))
        lead = plain.messages[: count_leading_systems(plain.messages)]
        try:
            head = self._head(replace(plain, messages=lead), now)
        except InvalidRequest:
            # The template takes this chat, and not the head with a single user message.
            head = ()
        return Prompt(
            token_ids=token_ids,
            num_head_tokens=_count_shared(head, token_ids),
            opens_reasoning=self.answer_format.opens_reasoning(text),
            images=found,
        )

    def render_head(self, head: Head) -> Prompt:
        """The tokens that every chat with this head begins with.

        Where a template moves its system text or tools with later turns (`Dialect.moving_head`), every chat whose
        only other message is a user's. Raises `InvalidRequest` where no chat with this head can be rendered.
        """
        plain = _plain_chat(Chat(messages=head.messages, tools=head.tools, template_variables=head.template_variables))
        token_ids = self._head(plain, self._now())
        return Prompt(token_ids=token_ids, num_head_tokens=len(token_ids))

    def render_text(self, chat: Chat) -> str:
        """The chat as text, before it is cut into tokens. Raises as `render` does."""
        return self._render(_plain_chat(chat), self._now()).text

    def tokenize(self, text: str) -> Prompt:
        """Plain text as a prompt, special tokens recognised, nothing added. Raises `InvalidRequest` for no Unicode."""
        return Prompt(token_ids=self._encode_prompt(text, {}))

    def encode(self, text: str) -> tuple[int, ...]:
        """As the tokenizer cuts the text, whatever was generated. Raises as `tokenize` does."""
        _check_unicode(text)
        return tuple(self._encode_text(text))

    def _encode_prompt(self, text: str, images: Images) -> tuple[int, ...]:
        _check_unicode(text)

        def encode(text: str) -> list[int]:
            return encode_with_images(text, images, self._encode_text)

        if any(image.depends_on_place for image in images.values()):
            return tuple(encode(text))
        return self.conversations.encode(text, encode)

    def _head(self, head: _PlainChat, now: datetime) -> tuple[int, ...]:
        key = _digest(head)
        cached = self._heads.pop(key, None)
        if cached is None or not cached.is_current(now):
            cached = self._render_head(head, now)
        self._heads[key] = cached
        if len(self._heads) > HEAD_CACHE_ENTRIES:
            self._heads.popitem(last=False)
        return cached.token_ids

    def _render_head(self, head: _PlainChat, now: datetime) -> _CachedHead:
        """Shared text of renderings that differ in the message after the head, then shared tokens.

        The message that follows can change how the last word before it is cut into tokens, so only tokens that the
        text without that word also has are taken.
        """
        role = "assistant" if head.messages and head.messages[-1]["role"] in ("user", "tool") else "user"
        first, *others = _PROBE_TEXTS
        rendering = self._render(_followed_by(head, role, first), now)
        texts = [rendering.text]
        for text in others:
            try:
                texts.append(self._render(_followed_by(head, role, text), now).text)
            except InvalidRequest:
                continue
        shared = _without_last_word(os.path.commonprefix(texts))  # noqa: RUF071 - of characters
        if not shared:
            return _CachedHead(token_ids=(), clock_reads=rendering.clock_reads)
        token_ids = self.encode(shared)
        token_ids = token_ids[: _count_shared(token_ids, self.encode(rendering.text))]
        return _CachedHead(token_ids=token_ids, clock_reads=rendering.clock_reads)

    def _compiled(self, with_tools: bool) -> CompiledTemplate:
        return self._template.tool_use if with_tools and self._template.tool_use else self._template.default

    def _render(self, chat: _PlainChat, now: datetime) -> Rendering:
        compiled = self._compiled(bool(chat.tools))
        dialect = self._dialects[compiled]
        messages = adapt(chat.messages, chat.tools, dialect)
        variables = {**self._special_tokens, **chat.variables}
        tools = chat.tools if chat.tools and dialect.tools else [] if dialect.empty_tools else None
        try:
            return compiled.render(messages, tools, variables, now=now)
        except TemplateRefused as refusal:
            raise InvalidRequest(f"the model's chat template refuses this chat: {refusal}", "messages") from None
        except TemplateFault as fault:
            raise InvalidRequest(
                f"the model's chat template cannot render this chat: {fault}. Change the messages, or the template "
                f"({self._template.origin})",
                "messages",
            ) from None


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the text holds half of a surrogate pair (JSON's \\ud83d and the like), which no character is; send "
            "whole characters",
            "messages",
        ) from None


def _plain_chat(chat: Chat, images: Images | None = None) -> _PlainChat:
    taken = RESERVED_VARIABLES & chat.template_variables.keys()
    if taken:
        raise InvalidRequest(
            f"{', '.join(sorted(taken))} cannot be set as a template variable; remove it from chat_template_kwargs",
            "chat_template_kwargs",
        )
    messages = plain_messages(chat.messages, with_images=images is not None)
    return _PlainChat(
        messages=with_aliases(messages, images) if images else messages,
        num_images=count_images(messages),
        tools=plain_tools(chat.tools),
        variables=plain_json(chat.template_variables, "chat_template_kwargs", "chat_template_kwargs"),
    )


def _followed_by(head: _PlainChat, role: str, text: str) -> _PlainChat:
    messages = [*head.messages, {"role": role, "content": text}]
    return _PlainChat(messages=messages, tools=head.tools, variables=head.variables)


def _digest(head: _PlainChat) -> bytes:
    # Unsorted: the order of a tool's keys reaches the prompt.
    text = json.dumps([head.messages, head.tools, head.variables])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _without_last_word(text: str) -> str:
    """Cuts trailing white space, and the run of letters, digits or signs before it."""
    text = text.rstrip()
    if not text:
        return ""
    kind = _kind(text[-1])
    end = len(text) - sum(1 for _ in takewhile(lambda char: _kind(char) == kind, reversed(text)))
    return text[:end]


def _kind(char: str) -> str:
    category = "Z" if char.isspace() else unicodedata.category(char)[0]
    return {"M": "L", "P": "S"}.get(category, category)


def _count_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Leading elements that two sequences share."""
    if a == b[: len(a)]:
        return len(a)
    return sum(1 for _ in takewhile(bool, map(eq, a, b)))
