"""Where the prefixes come from that are brought back after a load: the settings and the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from exllamav3_adapters.contract import Chat, Engine, Prompt
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.capture import CapturedHead
from litellm_exllamav3.head import chat_head


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmItem:
    """A prefix that is not in tokens yet. `name` says which, without a word of its text."""

    name: str
    render: Callable[[], Awaitable[Prompt]]
    pin: bool = False
    digest: str | None = None
    """The store's name for a captured head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmSources:
    """All but `captured` are pinned, and outside the budget."""

    token_ids: Sequence[Sequence[int]] = ()
    texts: Sequence[str] = ()
    chats: Sequence[Chat] = ()
    captured: Callable[[], Awaitable[Sequence[CapturedHead]]] | None = None
    """Asked once a replay, when it begins; most recently written first."""
    max_captured_tokens: int | None = None
    """None: what the cache holds beside the pinned prefixes."""

    async def items(self, engine: Engine) -> list[WarmItem]:
        """All of them, in the order of replay, named as in the settings."""
        renders: Mapping[str, Sequence[Callable[[], Awaitable[Prompt]]]] = {
            "warm_prefix_token_ids": [partial(_as_it_is, token_ids) for token_ids in self.token_ids],
            "warm_prefixes": [partial(engine.tokenize, text) for text in self.texts],
            "warm_prompts": [partial(_render, engine, chat) for chat in self.chats],
        }
        items = [
            WarmItem(name=f"{option}[{index}]", render=render, pin=True)
            for option, option_renders in renders.items()
            for index, render in enumerate(option_renders)
        ]
        captured = () if self.captured is None else await self.captured()
        return items + [
            WarmItem(
                name=f"captured head {item.digest[:12]}",
                render=partial(engine.render_head, item.head),
                digest=item.digest,
            )
            for item in captured
        ]


async def _as_it_is(token_ids: Sequence[int]) -> Prompt:
    if any(not 0 <= token_id < 2**31 for token_id in token_ids):
        raise InvalidRequest("token ids must lie in the model's vocabulary")
    return Prompt(token_ids=tuple(token_ids), num_head_tokens=len(token_ids))


async def _render(engine: Engine, chat: Chat) -> Prompt:
    """As a head where that is all the chat has, since a template may refuse, or end, a chat without a user."""
    head = chat_head(chat.messages, chat.tools)
    if len(head.messages) == len(chat.messages):
        return await engine.render_head(head)
    return await engine.render(chat)
