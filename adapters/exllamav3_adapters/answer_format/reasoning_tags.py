"""The tags around reasoning, by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    start: str
    end: str
    closing: str = ""
    """What is written where a budget ends reasoning: the end tag, and the white space around it that the family has.
    Empty: the tag alone."""
    recurs: bool = False
    """Reasoning may come again after its end."""

    @property
    def forced_end(self) -> str:
        return self.closing or self.end


FAMILIES = (
    ReasoningTags("<seed:think>", "</seed:think>"),  # Seed-OSS
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B and A
    ReasoningTags("[THINK]", "[/THINK]"),  # Magistral
    ReasoningTags("<|channel>thought\n", "<channel|>"),  # Gemma 4
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ReasoningTags("◁think▷", "◁/think▷"),  # Kimi VL
    ReasoningTags("<thought>", "</thought>"),  # EXAONE Deep
    # Qwen, DeepSeek, GLM, MiniMax, Nemotron, Kimi, SmolLM3, and most others
    ReasoningTags("<think>", "</think>", closing="\n</think>\n\n"),
)


def find_reasoning_tags(template_sources: Sequence[str]) -> ReasoningTags | None:
    """The tags that a template names. None: its model is not known to reason."""
    for tags in FAMILIES:
        if any(tags.end in source for source in template_sources):
            return tags
    return None


def opens_reasoning(prompt_text: str, tags: ReasoningTags) -> bool:
    """Whether a rendered prompt ends in a block of reasoning that the answer goes on with."""
    return prompt_text.rstrip().endswith(tags.start.strip())
