"""One request inside the engine: what it asked for, where its events go, and what became of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from exllamav3_adapters.contract import GenerationParams, Prompt, TokenLogprob
from exllamav3_adapters.event_stream import QueuedEventStream
from exllamav3_adapters.exl3.image_cache import PreparedImage
from exllamav3_adapters.exl3.sent_tokens import SentTokens


@dataclass(eq=False, slots=True)
class Request:
    """Owned by the scheduler's thread once submitted; only `stream` belongs to the loop.

    exllamav3 hands a job's `identifier` back with each result and keeps it when it requeues a long generation, so
    the request travels as the identifier and outlives the job objects.
    """

    prompt: Prompt
    params: GenerationParams
    stream: QueuedEventStream
    loop: asyncio.AbstractEventLoop
    max_new_tokens: int
    retain: bool = True
    background: bool = False
    """A prefill that yields to requests."""
    pin: bool = False
    images: list[PreparedImage] = field(default_factory=list)
    """Of the prompt, each once."""
    filters: list[Any] = field(default_factory=list)
    sampler: Any = None
    """None: made when the job is."""
    job: Any = None
    started: bool = False
    answering: bool = False
    """True once the first token is sampled; a long generation prefills again when it is requeued, silently."""
    computed_tokens: int = 0
    """Prompt tokens computed by attempts that had to yield (background only)."""
    held_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of tokens whose text is empty or still held back."""
    sent: SentTokens = field(default_factory=SentTokens)

    @property
    def counts(self) -> bool:
        """Whether the cache may learn from it what is wanted."""
        return self.retain and not self.background
