"""Taking what was captured out of everything that holds it: the store, a running replay and the engine.

The rule is the engines' own (`Engine.forget`): with a text goes all that shares a page with it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exllamav3_adapters.contract import Engine, Head, Prompt
from exllamav3_adapters.errors import EngineError, EngineUnavailable
from litellm_exllamav3.capture import Capture
from litellm_exllamav3.packed_tokens import TOKEN_BYTES, holds_tokens, pack_tokens, unpack_tokens
from litellm_exllamav3.section import PAGE_TOKENS
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.store.records import StoredChain

logger = logging.getLogger(__name__)

_EDGE_TOKENS = 4
"""At the beginning of a text, which become other tokens where the template puts something before it."""
_FEWEST_TOKENS = 16
"""Of a text; shorter ones stand in prompts that have nothing to do with it."""
_MOST_TOKENS = 128
"""So much of a text is looked for, since a chain may end within it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """What became of a head or chain that was to be forgotten. Its bytes are gone from the store's files."""

    num_pages: int | None
    """Pages dropped from every tier of the engine. None: the engine could not be asked, for this `reason`."""
    reason: str = ""
    num_chains: int = 0
    """Of the engine's prefixes, how many left the store."""
    all_chains: bool = False
    """Whether they are all that the model had, since no engine could say which of them hold the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sought:
    """How to tell the chains that hold a text. Tokens are packed."""

    start: bytes
    """The text's first page, or all of it. Empty: any chain may hold it."""
    texts: tuple[bytes, ...] = ()
    """Pieces of it, wherever they stand: a chat may be rendered with something else before them."""
    cache_fingerprint: str | None = None
    """Of the engine whose tokens these are; what another one's mean is not known. None: they are anybody's."""

    def is_in(self, chain: StoredChain) -> bool:
        if self.cache_fingerprint is not None and chain.cache_fingerprint != self.cache_fingerprint:
            return True
        return chain.token_ids.startswith(self.start) or any(holds_tokens(chain.token_ids, text) for text in self.texts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is to go, as far as it is known in tokens."""

    sought: Sought
    token_ids: tuple[int, ...] = ()
    """Of a head; a chain's are in the store."""
    head_digest: str | None = None


class Forgetting:
    """For one model. `model` is None where no engine is to be asked: none is loaded, and none has pages on disk."""

    def __init__(self, model_key: str, capture: Capture, model: ServedModel | None) -> None:
        self._model_key = model_key
        self._capture = capture
        self._model = model

    async def forget(self, digest: str) -> Forgotten | None:
        """Removes the head or chain of that digest. None if there is neither.

        Raises `StoreUnavailable` if the store cannot be written; it is then still there.
        """
        heads = await self._capture.entries(self._model_key)
        head = next((head.head for head in heads if head.digest == digest), None)
        chains = () if head is not None else await self._capture.chains.entries(self._model_key)
        chain = next((chain for chain in chains if chain.digest == digest), None)
        if head is None and chain is None:
            return None
        sought = Sought(start=b"" if chain is None else _start(chain.token_ids))
        target = Target(sought=sought, head_digest=None if head is None else digest)
        engine, reason = None, ""
        try:
            engine = None if self._model is None else await self._model.engine_in_time()
            if engine is not None and head is not None:
                target = await _head_in_tokens(engine, digest, head)
        except EngineError as error:
            reason = _reason(error)
        return await self._forget(target, engine, reason)

    async def _forget(self, target: Target, engine: Engine | None, reason: str) -> Forgotten:
        async with contextlib.nullcontext() if self._model is None else self._model.collection_paused():
            chains = await self._remove(target)
            num_pages = 0
            try:
                if engine is not None:
                    num_pages = await _forget_pages(engine, target, chains)
            except EngineError as error:
                reason = _reason(error)
        if reason:
            logger.warning("model %s: what was forgotten left the store, not the engine: %s", self._model_key, reason)
        return Forgotten(
            num_pages=None if reason else num_pages,
            reason=reason,
            num_chains=len(chains),
            all_chains=not target.sought.start,
        )

    async def _remove(self, target: Target) -> list[StoredChain]:
        """Out of the store and the running replay. Chains first: a head that is still listed can be forgotten again."""
        chains = await self._capture.chains.forget(self._model_key, target.sought.is_in)
        digests = {chain.digest for chain in chains}
        if target.head_digest is not None:
            await self._capture.forget(self._model_key, target.head_digest)
            digests.add(target.head_digest)
        if self._model is not None:
            for digest in digests:
                await self._model.drop_from_replay(digest)
        return chains


async def _head_in_tokens(engine: Engine, digest: str, head: Head) -> Target:
    """Raises `EngineError`."""
    prompt = await engine.render_head(head)
    tokenized = [await engine.tokenize(text) for text in _texts(head)]
    pieces = [text.token_ids[_EDGE_TOKENS:-_EDGE_TOKENS][:_MOST_TOKENS] for text in tokenized]
    sought = Sought(
        start=_start(pack_tokens(prompt.token_ids)),
        texts=tuple(pack_tokens(piece) for piece in pieces if len(piece) >= _FEWEST_TOKENS),
        cache_fingerprint=engine.info.cache_fingerprint,
    )
    return Target(sought=sought, token_ids=prompt.token_ids, head_digest=digest)


async def _forget_pages(engine: Engine, target: Target, chains: Sequence[StoredChain]) -> int:
    """Out of the engine's cache and its own record. Returns how many pages were dropped. Raises `EngineError`."""
    prompts = {_start(pack_tokens(target.token_ids)): target.token_ids} if target.token_ids else {}
    for chain in chains:
        if chain.cache_fingerprint == engine.info.cache_fingerprint:
            with contextlib.suppress(ValueError):  # damaged bytes name no page
                prompts.setdefault(_start(chain.token_ids), unpack_tokens(chain.token_ids))
    return sum([await engine.forget(Prompt(token_ids=token_ids)) for token_ids in prompts.values()])


def _reason(error: EngineError) -> str:
    """Without the words of an engine that refused a prompt: they may quote it."""
    return error.message if isinstance(error, EngineUnavailable) else type(error).__name__


def _start(packed: bytes) -> bytes:
    return packed[: PAGE_TOKENS * TOKEN_BYTES]


def _texts(head: Head) -> Iterator[str]:
    """What a template shows as it stands: the messages' texts and the tools' descriptions."""
    for message in head.messages:
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        yield from _strings(parts, "text")
    yield from _strings([tool.get("function") for tool in head.tools], "description")


def _strings(mappings: Iterable[Any], key: str) -> Iterator[str]:
    for mapping in mappings:
        if isinstance(mapping, Mapping) and isinstance(mapping.get(key), str):
            yield mapping[key].strip()
