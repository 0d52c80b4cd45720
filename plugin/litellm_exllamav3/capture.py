"""Learns which heads are hot, and keeps them. What the hook and the provider use of credit and store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from exllamav3_adapters.contract import Head
from litellm_exllamav3.canonical import canonical_form, head_digest
from litellm_exllamav3.captured_chains import CapturedChains
from litellm_exllamav3.credit import CreditPolicy, CreditTable
from litellm_exllamav3.head import RequestHead
from litellm_exllamav3.nonces import NonceRules
from litellm_exllamav3.store.budget import Budget, ModelBudgets
from litellm_exllamav3.store.prefix_store import PrefixStore, StoreListener
from litellm_exllamav3.store.records import StoredHead, decode_head, encode_head

logger = logging.getLogger("litellm_exllamav3.capture")

_BYTES_PER_TOKEN = 4
_HOUR = 3600.0
_DAY = 86_400.0
_MEBIBYTE = 1 << 20
_MAX_OWNERS = 4096
_MAX_REFUSED = 4096
_UNBOUNDED = 1 << 31


class CaptureSettings(Protocol):
    """One model's `capture` section, as far as it is used here."""

    @property
    def enabled(self) -> bool: ...
    @property
    def min_conversations(self) -> int: ...
    @property
    def min_requests(self) -> int: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def half_life_hours(self) -> float: ...
    @property
    def max_entries(self) -> int: ...
    @property
    def max_entries_per_key(self) -> int: ...
    @property
    def max_mebibytes(self) -> float: ...
    @property
    def max_age_days(self) -> float: ...
    @property
    def flush_seconds(self) -> float: ...
    @property
    def nonces(self) -> Sequence[str]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """One request's head, counted. Valid for this request."""

    model_key: str
    digest: str
    """Empty where the head is too small to be counted."""
    owner: str
    """Digest of the API key, never the key."""
    due: bool
    """Seen often enough to be kept."""
    known: bool
    """Kept already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedHead:
    """A head that is kept. Times are seconds since the epoch."""

    model_key: str
    digest: str
    head: Head
    num_tokens: int
    """As the model's template and tokenizer counted them when it was captured."""
    num_bytes: int
    owner: str
    captured_at: float
    written_at: float
    """When it was last seen, within a flush."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCaptureStats:
    """One model's heads. Counters run from the start of the process."""

    captured: int
    """Heads that are kept."""
    tracked: int
    """Heads that are counted."""
    sightings: int
    """Requests whose head was counted."""
    kept: int
    """Heads captured by this process."""
    chains: int
    """Prefixes of the engine's own that are kept, under any cache fingerprint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureStats:
    models: Mapping[str, ModelCaptureStats]
    writable: bool
    """False while the store cannot be written, and all waits in memory."""
    pending_heads: int
    """Captured but not yet written."""
    pending_chains: int


class _Model:
    """What is known of one model's heads. Used on the loop only."""

    def __init__(self, settings: CaptureSettings) -> None:
        self.settings = settings
        self.nonces = NonceRules(settings.nonces)
        self.credit = CreditTable(
            CreditPolicy(
                half_life_seconds=settings.half_life_hours * _HOUR,
                min_conversations=settings.min_conversations,
                min_requests=settings.min_requests,
            )
        )
        self.captured: set[str] = set()
        self.refused: set[str] = set()
        """Hot, but of a kind that is not kept: not worth a second look."""
        self.sightings = 0
        self.kept = 0

    def refuse(self, digest: str) -> None:
        if len(self.refused) >= _MAX_REFUSED:
            self.refused.clear()
        self.refused.add(digest)


class Capture:
    """All calls are made on the loop that opened it. None of them waits for the disk on the loop.

    Privacy is the caller's: nothing of a request that must leave no trace may come here (see `privacy.py`).
    """

    def __init__(
        self,
        state_dir: Path,
        rules: Mapping[str, CaptureSettings],
        clock: Callable[[], float],
        max_chains: Mapping[str, int],
    ) -> None:
        """Use `open`."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._models = {key: _Model(settings) for key, settings in rules.items()}
        self._owners: dict[str, str] = {}
        budgets = {key: _budgets(settings, max_chains.get(key, _UNBOUNDED)) for key, settings in rules.items()}
        self._store = PrefixStore(
            state_dir,
            budgets,
            StoreListener(
                removed=lambda key, digests: self._on_loop(lambda: self._removed(key, digests)),
                lost=lambda: self._on_loop(self._lost),
            ),
            flush_seconds=min((settings.flush_seconds for settings in rules.values()), default=1.0),
            clock=clock,
        )
        self.chains = CapturedChains(self._store, {key: one.chains.max_bytes for key, one in budgets.items()})

    @classmethod
    async def open(
        cls,
        state_dir: Path,
        rules: Mapping[str, CaptureSettings],
        clock: Callable[[], float] = time.time,
        *,
        max_chains: Mapping[str, int] | None = None,
    ) -> Capture:
        """Takes up what an earlier process left in `state_dir`, which is made if need be.

        `rules` by model key; `clock` gives seconds since the epoch; `max_chains` by model key bounds how many of the
        engine's own prefixes are kept of each cache fingerprint (by default only their bytes and age are bounded).
        A store that cannot be opened is no error: it is logged, and all is kept in memory until it can be. Raises
        ValueError for a nonce that is no regular expression.
        """
        capture = cls(state_dir, rules, clock, max_chains or {})
        loaded = await asyncio.wrap_future(capture._store.load())
        for key, model in capture._models.items():
            model.captured.update(loaded.digests.get(key, ()))
            model.credit.load(loaded.credits.get(key, ()), clock())
        return capture

    def observe(self, model_key: str, head: RequestHead, owner: str) -> Sighting:
        """Counts a request's head. `owner` is the API key or its hash, and goes no further than here.

        The hot path: no I/O, well under a millisecond for 120 kB. Where capture is off, the model is unknown, or the
        head is shorter than `min_tokens` by its bytes, nothing is counted.
        """
        model = self._models.get(model_key)
        form = canonical_form(head, model.nonces) if model is not None and model.settings.enabled else None
        owner = self._owner_digest(owner)
        if model is None or form is None or len(form) < model.settings.min_tokens * _BYTES_PER_TOKEN:
            return Sighting(model_key=model_key, digest="", owner=owner, due=False, known=False)
        digest, now = head_digest(form), self._clock()
        row = model.credit.observe(digest, owner, now, starts_conversation=head.starts_conversation)
        model.sightings += 1
        self._store.add_credit(model_key, row)
        known = digest in model.captured
        if known:
            self._store.add_sighting(model_key, digest, model.credit.value(digest), now)
        due = model.credit.is_due(digest, now)
        return Sighting(model_key=model_key, digest=digest, owner=owner, due=due, known=known)

    def wants(self, sighting: Sighting) -> bool:
        """Whether the head is hot and not kept yet, so that its tokens are worth counting."""
        if not sighting.due:
            return False
        model = self._models[sighting.model_key]
        return sighting.digest not in model.captured and sighting.digest not in model.refused

    def keep(self, sighting: Sighting, head: Head, num_tokens: int) -> bool:
        """Captures the head, nonces already dropped. Queued: it is on disk within `flush_seconds`.

        False, and nothing kept, if it has fewer than `min_tokens`, is kept already, was forgotten since it was seen,
        takes more than all heads may, or cannot be written as JSON.
        """
        if not self.wants(sighting):
            return False
        model, digest, now = self._models[sighting.model_key], sighting.digest, self._clock()
        if digest not in model.credit:
            return False
        content = _encoded(head) if num_tokens >= model.settings.min_tokens else None
        if content is None or len(content) > model.settings.max_mebibytes * _MEBIBYTE:
            model.refuse(digest)
            return False
        model.captured.add(digest)
        model.kept += 1
        self._store.add_head(
            StoredHead(
                model_key=sighting.model_key,
                digest=digest,
                owner=sighting.owner,
                content=content,
                num_tokens=num_tokens,
                value=model.credit.value(digest),
                captured_at=now,
                written_at=now,
            )
        )
        logger.info("captured a head of %d tokens for %s: %s", num_tokens, sighting.model_key, digest)
        return True

    async def entries(self, model_key: str) -> list[CapturedHead]:
        """The heads that are kept for a model, most recently written first, those that still wait included."""
        heads = await asyncio.wrap_future(self._store.heads(model_key))
        return await asyncio.to_thread(_captured_heads, heads)

    async def forget(self, model_key: str, digest: str) -> CapturedHead | None:
        """Removes a head and what is counted of it: afterwards no byte of it is in the store's files. None: no such.

        Raises StoreUnavailable where the file cannot be written; the head is then still in it. A head that goes on
        being used is learnt anew.
        """
        model = self._models.get(model_key)
        if model is None:
            forgotten = await asyncio.wrap_future(self._store.forget(model_key, digest))
        else:
            model.credit.forget(digest)
            model.captured.discard(digest)
            # Not kept anew before the store has done its part, or it would go with the rest unnoticed.
            model.refused.add(digest)
            try:
                forgotten = await asyncio.wrap_future(self._store.forget(model_key, digest))
            finally:
                model.refused.discard(digest)
        return None if forgotten is None else _captured_head(forgotten)

    async def flush(self) -> bool:
        """Writes what waits. Whether it could be written."""
        return await asyncio.wrap_future(self._store.flush())

    async def close(self) -> None:
        """Writes what waits and ends the store's thread. May be called more than once."""
        await asyncio.wrap_future(self._store.close())

    def stats(self) -> CaptureStats:
        return CaptureStats(
            models={
                key: ModelCaptureStats(
                    captured=len(model.captured),
                    tracked=len(model.credit),
                    sightings=model.sightings,
                    kept=model.kept,
                    chains=self.chains.num_kept(key),
                )
                for key, model in self._models.items()
            },
            writable=self._store.writable,
            pending_heads=self._store.num_pending_heads,
            pending_chains=self.chains.num_pending,
        )

    def _owner_digest(self, owner: str) -> str:
        digest = self._owners.get(owner)
        if digest is None:
            if len(self._owners) >= _MAX_OWNERS:
                self._owners.clear()
            digest = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            self._owners[owner] = digest
        return digest

    def _on_loop(self, call: Callable[[], None]) -> None:
        """From the store's thread; after the loop has ended nobody needs to know."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            logger.debug("the loop has ended")

    def _removed(self, model_key: str, digests: list[str]) -> None:
        # A head that was kept anew since is captured once more at its next sighting, which changes nothing.
        model = self._models.get(model_key)
        if model is not None:
            model.captured.difference_update(digests)

    def _lost(self) -> None:
        """The file is a new one: what is hot is captured again when it is next seen, and all counts are written."""
        for key, model in self._models.items():
            model.captured.clear()
            for row in model.credit.rows():
                self._store.add_credit(key, row)


def _budgets(settings: CaptureSettings, max_chains: int) -> ModelBudgets:
    heads = Budget(
        max_entries=settings.max_entries,
        max_entries_per_key=settings.max_entries_per_key,
        max_bytes=int(settings.max_mebibytes * _MEBIBYTE),
        max_age_seconds=settings.max_age_days * _DAY,
    )
    return ModelBudgets(heads=heads, chains=replace(heads, max_entries=_UNBOUNDED, max_entries_per_key=max_chains))


def _encoded(head: Head) -> bytes | None:
    try:
        return encode_head(head)
    except (TypeError, ValueError, RecursionError):
        return None


def _captured_heads(heads: Sequence[StoredHead]) -> list[CapturedHead]:
    captured = []
    for head in heads:
        try:
            captured.append(_captured_head(head))
        except (ValueError, KeyError, TypeError):
            logger.warning("the captured head %s of %s cannot be read, and is passed over", head.digest, head.model_key)
    return captured


def _captured_head(stored: StoredHead) -> CapturedHead:
    return CapturedHead(
        model_key=stored.model_key,
        digest=stored.digest,
        head=decode_head(stored.content),
        num_tokens=stored.num_tokens,
        num_bytes=len(stored.content),
        owner=stored.owner,
        captured_at=stored.captured_at,
        written_at=stored.written_at,
    )
