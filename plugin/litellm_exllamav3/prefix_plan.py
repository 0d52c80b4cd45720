"""Which prefixes a replay computes, and how many of their tokens: folded on what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exllamav3_adapters.contract import Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """One prefix to replay. `name` says which, without a word of its text."""

    name: str
    prompt: Prompt
    pin: bool = False
    digest: str | None = None
    """The store's name for a captured head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixPlan:
    """`prefixes` in order; the rest says what became of those that are not among them."""

    prefixes: tuple[Prefix, ...]
    num_folded: int
    """Prefixes that are the beginning of another one, which brings them along."""
    num_over_budget: int
    tokens_over_budget: int


def plan_prefixes(
    configured: Sequence[Prefix], captured: Sequence[Prefix], *, max_captured_tokens: int | None
) -> PrefixPlan:
    """Configured prefixes first, then captured ones in their order (most recent first) within the budget.

    A captured prefix costs the tokens that no chosen prefix before it has. One that does not fit is passed over and
    shorter ones behind it still get their turn. A prefix that another one begins with is left out; the longer one
    takes its place in the order.
    """
    chosen = list(configured)
    left = max_captured_tokens
    num_over, tokens_over = 0, 0
    for prefix in captured:
        cost = len(prefix.prompt.token_ids) - max((_num_shared(prefix, other) for other in chosen), default=0)
        if left is not None and cost > left:
            num_over += 1
            tokens_over += cost
            continue
        if left is not None:
            left -= cost
        chosen.append(prefix)
    kept = _fold(chosen)
    return PrefixPlan(
        prefixes=tuple(kept),
        num_folded=len(chosen) - len(kept),
        num_over_budget=num_over,
        tokens_over_budget=tokens_over,
    )


def _fold(prefixes: Sequence[Prefix]) -> list[Prefix]:
    kept: list[Prefix] = []
    for prefix in prefixes:
        if any(_brings_along(other, prefix) for other in kept):
            continue
        covered = [at for at, other in enumerate(kept) if _brings_along(prefix, other)]
        if not covered:
            kept.append(prefix)
            continue
        kept[covered[0]] = prefix
        for at in reversed(covered[1:]):
            del kept[at]
    return kept


def _brings_along(longer: Prefix, shorter: Prefix) -> bool:
    """Whether replaying `longer` does all that replaying `shorter` would: a pin is only brought along by a pin."""
    tokens = shorter.prompt.token_ids
    return longer.prompt.token_ids[: len(tokens)] == tokens and (longer.pin or not shorter.pin)


def _num_shared(a: Prefix, b: Prefix) -> int:
    """Leading tokens that both have."""
    mine, other = a.prompt.token_ids, b.prompt.token_ids
    low, high = 0, min(len(mine), len(other))
    while low < high:  # Equality of slices is one memory comparison: far faster than a loop over the tokens.
        middle = (low + high + 1) // 2
        if mine[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
