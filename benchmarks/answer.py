"""What one streamed answer took, through the proxy or in the engine's own loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Times are seconds since the request was sent."""

    first_token: float
    last_token: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one, which belongs to the prefill."""
        return (self.completion_tokens - 1) / (self.last_token - self.first_token)
