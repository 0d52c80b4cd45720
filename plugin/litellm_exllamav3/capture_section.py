"""The section `capture`: which prompt heads are kept for replay, and how many."""

from __future__ import annotations

from pydantic import Field, field_validator

from litellm_exllamav3.nonces import DEFAULT_NONCES, NonceRules
from litellm_exllamav3.section import Count, NotNegative, Positive, Section

_PROSE = "Be concise.\n"
"""What no rule may match: a rule that does would drop whole prompts."""


class CaptureSection(Section):
    """A head is the leading system messages and the tools of a chat. Hot ones are kept, and replayed after a start."""

    enabled: bool = Field(default=True, description="Keep hot heads on disk. With false nothing of a request is kept.")
    min_conversations: Count = Field(
        default=2, description="Conversations that must have begun with a head, within a half-life, before it is kept."
    )
    min_requests: Count = Field(
        default=10, description="Or requests that must have carried it, within a half-life; whichever comes first."
    )
    min_tokens: Count = Field(default=256, description="Heads with fewer tokens are not kept.")
    half_life_hours: Positive = Field(default=24.0, description="Hours in which a head's credit halves.")
    max_entries: Count = Field(default=256, description="Most heads that are kept.")
    max_entries_per_key: Count = Field(default=64, description="Most heads that one API key may have kept.")
    max_mebibytes: Positive = Field(
        default=64.0,
        description="MiB that the kept heads may take, and as many again for prefixes that the engine records.",
    )
    max_age_days: Positive = Field(default=30.0, description="Days after its last use when a head is dropped.")
    flush_seconds: NotNegative = Field(
        default=1.0, description="Seconds between writes of the counts; a crash loses at most so much."
    )
    nonces: tuple[str, ...] = Field(
        default=DEFAULT_NONCES,
        description="Regular expressions for whole lines at the beginning of a system message that change with "
        "each request. Such lines are dropped from the prompt, since one of them costs every cache hit.",
    )

    @field_validator("nonces")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for index, pattern in enumerate(patterns):
            try:
                rules = NonceRules([pattern])
            except ValueError as error:
                # The pattern may have come from the environment: only the reason may be shown.
                raise ValueError(f"entry {index} is not a regular expression: {error.__cause__}") from None
            if rules.strip_text(_PROSE) != _PROSE:
                raise ValueError(f"entry {index} matches plain prose, and would drop whole prompts; make it narrower")
        return patterns
