"""What waits to be written. No lock of its own: `PrefixStore` holds one around it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from litellm_exllamav3.credit import CreditRow
from litellm_exllamav3.store.budget import Budget, excess
from litellm_exllamav3.store.records import StoredHead

_MAX_CREDITS = 65_536
"""While nothing can be written the oldest counts go."""


@dataclass(slots=True)
class Pending:
    """Keys begin with the model's key and the head's digest. Later news of the same thing replaces earlier."""

    heads: dict[tuple[str, str], StoredHead] = field(default_factory=dict)
    sightings: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """Value and time of the last sighting of heads that are already written."""
    credits: dict[tuple[str, str, str], CreditRow] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.heads or self.sightings or self.credits)

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
        self.credits = {**older.credits, **self.credits}
        for key in list(self.credits)[: max(0, len(self.credits) - _MAX_CREDITS)]:
            del self.credits[key]

    def trim(self, model_key: str, budget: Budget, now: float) -> list[str]:
        """Applies the budget to what waits. Returns the digests of heads that went."""
        entries = [head.entry() for (model, _), head in self.heads.items() if model == model_key]
        gone = excess(entries, budget, now)
        for digest in gone:
            del self.heads[model_key, digest]
        return gone

    def forget(self, model_key: str, digest: str) -> StoredHead | None:
        self.sightings.pop((model_key, digest), None)
        for key in [key for key in self.credits if key[:2] == (model_key, digest)]:
            del self.credits[key]
        return self.heads.pop((model_key, digest), None)
