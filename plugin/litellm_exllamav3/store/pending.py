"""What waits to be written. No lock of its own: `PrefixStore` holds one around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from litellm_exllamav3.credit import CreditRow
from litellm_exllamav3.store.budget import ModelBudgets, excess
from litellm_exllamav3.store.records import StoredChain, StoredHead

_MAX_CREDITS = 65_536
"""While nothing can be written the oldest counts go."""


@dataclass(slots=True)
class Pending:
    """Keys are those of the tables. Later news of the same thing replaces earlier."""

    heads: dict[tuple[str, str], StoredHead] = field(default_factory=dict)
    sightings: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """Value and time of the last sighting of heads that are already written."""
    credits: dict[tuple[str, str, str], CreditRow] = field(default_factory=dict)
    chains: dict[tuple[str, str, str], StoredChain] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.heads or self.sightings or self.credits or self.chains)

    def add_sighting(self, model_key: str, digest: str, value: float, at: float) -> None:
        key = (model_key, digest)
        head = self.heads.get(key)
        if head is None:
            self.sightings[key] = (value, at)
        else:
            self.heads[key] = replace(head, value=value, written_at=at)

    def add_credit(self, model_key: str, row: CreditRow) -> None:
        self.credits[model_key, row.digest, row.owner] = row
        if len(self.credits) > _MAX_CREDITS:
            del self.credits[next(iter(self.credits))]

    def add_older(self, older: Pending) -> None:
        """Takes back what could not be written."""
        heads = {**older.heads, **self.heads}
        sightings, self.heads, self.sightings = self.sightings, heads, dict(older.sightings)
        for (model_key, digest), (value, at) in sightings.items():
            self.add_sighting(model_key, digest, value, at)
        self.chains = {**older.chains, **self.chains}
        self.credits = {**older.credits, **self.credits}
        for key in list(self.credits)[: max(0, len(self.credits) - _MAX_CREDITS)]:
            del self.credits[key]

    def trim(self, model_key: str, budgets: ModelBudgets, now: float) -> list[str]:
        """Applies the budgets to what waits. Returns the digests of heads that went."""
        heads = [head.entry() for (model, _), head in self.heads.items() if model == model_key]
        gone = [entry.digest for entry in excess(heads, budgets.heads, now)]
        for digest in gone:
            del self.heads[model_key, digest]
        chains = [chain.entry() for (model, *_), chain in self.chains.items() if model == model_key]
        for entry in excess(chains, budgets.chains, now):
            del self.chains[model_key, entry.owner, entry.digest]
        return gone

    def forget_head(self, model_key: str, digest: str) -> StoredHead | None:
        self.sightings.pop((model_key, digest), None)
        for key in [key for key in self.credits if key[:2] == (model_key, digest)]:
            del self.credits[key]
        return self.heads.pop((model_key, digest), None)

    def forget_chains(self, model_key: str, doomed: Callable[[StoredChain], bool]) -> list[StoredChain]:
        gone = [chain for chain in self.chains.values() if chain.model_key == model_key and doomed(chain)]
        for chain in gone:
            del self.chains[chain.key]
        return gone
