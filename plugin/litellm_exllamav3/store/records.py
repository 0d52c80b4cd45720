"""What the store holds, and its bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from exllamav3_adapters.contract import Head
from litellm_exllamav3.store.budget import Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredHead:
    """A captured head. Times are seconds since the epoch; `value` is a log count (see `credit.py`)."""

    model_key: str
    digest: str
    owner: str
    """Digest of the API key that brought it."""
    content: bytes
    num_tokens: int
    value: float
    captured_at: float
    written_at: float
    """When it was last seen, within a flush."""

    def entry(self) -> Entry:
        return Entry(
            digest=self.digest,
            owner=self.owner,
            num_bytes=len(self.content),
            value=self.value,
            written_at=self.written_at,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredChain:
    """A prefix that an engine captured. `token_ids` are packed, and mean this text under this fingerprint only."""

    model_key: str
    cache_fingerprint: str
    digest: str
    """Chained hash of its last page: of its tokens alone, so two fingerprints may share it."""
    token_ids: bytes
    num_tokens: int
    credit: float
    written_at: float
    """When the engine last wrote it, seconds since the epoch."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The primary key."""
        return self.model_key, self.cache_fingerprint, self.digest

    def entry(self) -> Entry:
        """For the budget. Its credit says nothing at another time, so the one written longest ago is worth least."""
        return Entry(
            digest=self.digest,
            owner=self.cache_fingerprint,
            num_bytes=len(self.token_ids),
            value=self.written_at,
            written_at=self.written_at,
        )


def encode_head(head: Head) -> bytes:
    """The head as JSON, keys in their order: a template may show them so. Raises TypeError or ValueError."""
    form: dict[str, Any] = {"messages": list(head.messages), "tools": list(head.tools)}
    if head.template_variables:
        form["template_variables"] = dict(head.template_variables)
    try:
        return orjson.dumps(form)
    except TypeError:
        return json.dumps(form).encode("ascii")


def decode_head(content: bytes) -> Head:
    """Raises ValueError or KeyError where the bytes are not such a head."""
    # orjson would refuse lone surrogates and turn long integers into floats.
    form = json.loads(content)
    messages, tools = tuple(form["messages"]), tuple(form["tools"])
    # Heads that were written before variables were kept have none.
    return Head(messages=messages, tools=tools, template_variables=form.get("template_variables", {}))
