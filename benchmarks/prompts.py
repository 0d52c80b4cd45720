"""Prompts of a given length, each different from the first line on, so that no two share a page."""

from __future__ import annotations

from typing import Any

Messages = list[dict[str, Any]]

_TOKENS_PER_RULE = 40  # of the demo model's tokenizer
_TOPICS = ["delivery", "returns", "payment", "warranty", "stock", "vouchers", "invoices", "accounts", "discounts"]
_THINGS = ["lamp", "chair", "clock", "kettle", "carpet", "mirror", "radio"]


def rules(name: str, num_tokens: int) -> str:
    """A system prompt of about so many tokens, of the kind that agents send with each request."""
    lines = [
        f"Rule {number}: when a customer writes about {_TOPICS[number % len(_TOPICS)]}, answer in at most "
        f"{number % 4 + 2} sentences, name the order by its number, and promise no date that the warehouse has not "
        "confirmed."
        for number in range(1, num_tokens // _TOKENS_PER_RULE + 1)
    ]
    return "\n".join([f"{name} is the shop whose support assistant you are.", *lines])


def conversation(system: str, number: int) -> Messages:
    """The start of a conversation with this head; each number asks something else."""
    thing = _THINGS[number % len(_THINGS)]
    return [{"role": "system", "content": system}, *short_chat(f"I have bought a {thing}, order {1000 + number}.")]


def short_chat(text: str) -> Messages:
    return [{"role": "user", "content": text}]
