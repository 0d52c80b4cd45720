"""Grammar of members that commas separate, some of which may be left out."""

from __future__ import annotations

from collections.abc import Sequence

from exllamav3_adapters.answer_format.lark import literal


def members(items: Sequence[tuple[str, bool]], comma: str) -> str:
    """An expression of the items in their order. Each is an expression, and whether it must be there.

    Which item is the first decides where commas stand, so each that may be is an alternative.
    """
    separator = literal(comma)
    alternatives: list[str] = []
    for number, (item, is_required) in enumerate(items):
        later = [f"{separator} {other}" for other, _ in items[number + 1 :]]
        needed = [need for _, need in items[number + 1 :]]
        alternatives.append(
            " ".join([item, *(one if need else f"({one})?" for one, need in zip(later, needed, strict=True))])
        )
        if is_required:
            return f"({' | '.join(alternatives)})"
    return f"({' | '.join(alternatives)})?" if alternatives else ""
