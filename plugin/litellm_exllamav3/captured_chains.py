"""The prefixes that engines capture themselves, kept in the store. A chain is whole pages of tokens, without text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from exllamav3_adapters.contract import StoredPrefix
from litellm_exllamav3.packed_tokens import pack_tokens
from litellm_exllamav3.store.prefix_store import PrefixStore
from litellm_exllamav3.store.records import StoredChain

logger = logging.getLogger(__name__)


class CapturedChains:
    """Chains by model. All calls are made on one loop, and what takes time is done elsewhere.

    Privacy is the engine's: it captures nothing of a request that must leave no trace.
    """

    def __init__(self, store: PrefixStore, max_bytes: Mapping[str, int]) -> None:
        """`max_bytes` by model: what is larger is not kept, since all others would have to go for it."""
        self._store = store
        self._max_bytes = max_bytes

    @property
    def num_pending(self) -> int:
        return self._store.num_pending_chains

    def num_kept(self, model_key: str) -> int:
        """Those that are written, under any fingerprint."""
        return self._store.num_chains.get(model_key, 0)

    async def keep(self, model_key: str, prefixes: Sequence[StoredPrefix]) -> None:
        """Queued: they are on disk within `flush_seconds`."""
        # Each may be tens of thousands of tokens.
        for chain in await asyncio.to_thread(_packed, model_key, prefixes, self._max_bytes.get(model_key)):
            self._store.add_chain(chain)

    async def entries(self, model_key: str) -> list[StoredChain]:
        """Under any fingerprint, most recently written first, those that still wait included."""
        return await asyncio.wrap_future(self._store.chains(model_key))

    async def forget(self, model_key: str, doomed: Callable[[StoredChain], bool]) -> list[StoredChain]:
        """Removes those chains: afterwards no byte of them is in the store's files. Returns them.

        `doomed` is asked on another thread. Raises StoreUnavailable where the file cannot be written; they are then
        still in it.
        """
        return await asyncio.wrap_future(self._store.forget_chains(model_key, doomed))


def _packed(model_key: str, prefixes: Sequence[StoredPrefix], max_bytes: int | None) -> list[StoredChain]:
    chains = []
    for prefix in prefixes:
        try:
            token_ids = pack_tokens(prefix.token_ids)
        except (OverflowError, TypeError):
            logger.warning("model %s: the engine's chain %s is not of token ids", model_key, prefix.digest[:12])
            continue
        if token_ids and (max_bytes is None or len(token_ids) <= max_bytes):
            chains.append(
                StoredChain(
                    model_key=model_key,
                    cache_fingerprint=prefix.cache_fingerprint,
                    digest=prefix.digest,
                    token_ids=token_ids,
                    num_tokens=len(prefix.token_ids),
                    credit=prefix.credit,
                    written_at=prefix.written_at,
                )
            )
    return chains
