"""Where the prefixes come from that are brought back after a load: the settings and the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

from exllamav3_adapters.contract import Chat, Engine, Prompt
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.capture import CapturedHead
from litellm_exllamav3.head import chat_head
from litellm_exllamav3.packed_tokens import unpack_tokens
from litellm_exllamav3.store.records import StoredChain


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmItem:
    """A prefix that is not in tokens yet. `name` says which, without a word of its text."""

    name: str
    render: Callable[[], Awaitable[Prompt]]
    pin: bool = False
    digest: str | None = None
    """The store's name for what was captured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmSources:
    """All but what was captured, `captured` and `chains`, is pinned and outside the budget."""

    token_ids: Sequence[Sequence[int]] = ()
    texts: Sequence[str] = ()
    chats: Sequence[Chat] = ()
    captured: Callable[[], Awaitable[Sequence[CapturedHead]]] | None = None
    """Heads. Asked once a replay, when it begins; most recently written first."""
    chains: Callable[[], Awaitable[Sequence[StoredChain]]] | None = None
    """What engines captured, in the same way. Those of another cache fingerprint are left alone."""
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
        return items + await self._captured_items(engine)

    async def _captured_items(self, engine: Engine) -> list[WarmItem]:
        """Heads and chains together, most recently written first."""
        heads = () if self.captured is None else await self.captured()
        chains = () if self.chains is None else await self.chains()
        dated = [(head.written_at, _head_item(engine, head)) for head in heads]
        fingerprint = engine.info.cache_fingerprint
        dated += [(chain.written_at, _chain_item(chain)) for chain in chains if chain.cache_fingerprint == fingerprint]
        return [item for _, item in sorted(dated, key=itemgetter(0), reverse=True)]


def _head_item(engine: Engine, head: CapturedHead) -> WarmItem:
    return WarmItem(
        name=f"captured head {head.digest[:12]}", render=partial(engine.render_head, head.head), digest=head.digest
    )


def _chain_item(chain: StoredChain) -> WarmItem:
    return WarmItem(name=f"captured chain {chain.digest[:12]}", render=partial(_unpacked, chain), digest=chain.digest)


async def _unpacked(chain: StoredChain) -> Prompt:
    """Raises `InvalidRequest` for damaged bytes."""
    try:
        token_ids = await asyncio.to_thread(unpack_tokens, chain.token_ids)
    except ValueError:
        raise InvalidRequest("the bytes are no whole number of token ids") from None
    if len(token_ids) != chain.num_tokens:
        raise InvalidRequest(f"{len(token_ids)} token ids are there, and {chain.num_tokens} were written")
    return await _as_it_is(token_ids)


async def _as_it_is(token_ids: Sequence[int]) -> Prompt:
    if any(not 0 <= token_id < 2**31 for token_id in token_ids):
        raise InvalidRequest("token ids must lie in the model's vocabulary")
    return Prompt(token_ids=tuple(token_ids), num_head_tokens=len(token_ids))


async def _render(engine: Engine, chat: Chat) -> Prompt:
    """As a head where that is all the chat has, since a template may refuse, or end, a chat without a user."""
    head = chat_head(chat.messages, chat.tools, chat.template_variables)
    if len(head.messages) == len(chat.messages):
        return await engine.render_head(head)
    return await engine.render(chat)
