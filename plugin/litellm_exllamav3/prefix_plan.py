"""Which prefixes a replay computes, and how many of their tokens: folded on what they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exllamav3_adapters.contract import Prompt
from litellm_exllamav3.packed_tokens import pack_tokens
from litellm_exllamav3.prefix_index import PrefixIndex


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """One prefix to replay. `name` says which, without a word of its text."""

    name: str
    prompt: Prompt
    pin: bool = False
    digest: str | None = None
    """The store's name for what was captured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixPlan:
    """`prefixes` in order; the rest says what became of those that are not among them."""

    prefixes: tuple[Prefix, ...]
    num_folded: int
    """Prefixes that are the beginning of another one, which brings them along."""
    num_over_budget: int
    tokens_over_budget: int


def plan_prefixes(configured: Sequence[Prefix], captured: Sequence[Prefix], *, max_captured_tokens: int) -> PrefixPlan:
    """Configured prefixes first, then captured ones in their order (most recent first) within the budget.

    A captured prefix costs the tokens that no chosen prefix before it has. One that does not fit is passed over and
    shorter ones behind it still get their turn. A prefix that another one begins with is left out; the longer one
    takes its place in the order. A captured prefix never stands in for a configured one, which is to be pinned.
    """
    pinned = _fold(configured, PrefixIndex())
    brought = PrefixIndex(map(_key, pinned))
    chosen: list[Prefix] = []
    left, num_over, tokens_over = max_captured_tokens, 0, 0
    for prefix in captured:
        key = _key(prefix)
        cost = len(prefix.prompt.token_ids) - brought.num_shared(key)
        if cost > left:
            num_over += 1
            tokens_over += cost
            continue
        left -= cost
        brought.add(key)
        chosen.append(prefix)
    kept = [*pinned, *_fold(chosen, PrefixIndex(map(_key, pinned)))]
    return PrefixPlan(
        prefixes=tuple(kept),
        num_folded=len(configured) + len(chosen) - len(kept),
        num_over_budget=num_over,
        tokens_over_budget=tokens_over,
    )


def _fold(prefixes: Iterable[Prefix], others: PrefixIndex) -> list[Prefix]:
    """Without those that another of them, or one of the others, begins with."""
    kept: list[Prefix] = []
    places: dict[bytes, int] = {}
    index = PrefixIndex()
    for prefix in prefixes:
        key = _key(prefix)
        if index.extended(key) or others.extended(key):
            continue
        shorter = index.beginning(key)
        if shorter is None:
            places[key] = len(kept)
            kept.append(prefix)
        else:
            index.remove(shorter)
            places[key] = places.pop(shorter)
            kept[places[key]] = prefix
        index.add(key)
    return kept


def _key(prefix: Prefix) -> bytes:
    return pack_tokens(prefix.prompt.token_ids)
