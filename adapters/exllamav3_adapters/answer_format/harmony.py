"""The answers of gpt-oss: messages on channels, some of them to a tool.

OpenAI's package `openai-harmony` reads what names a message's channel and recipient. It is not given what the
message says: its parser takes time that grows with the square of a message's length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from exllamav3_adapters.answer_format.answer_parser import AnswerParser
from exllamav3_adapters.answer_format.harmony_answer import HarmonyAnswer
from exllamav3_adapters.answer_format.harmony_grammar import harmony_grammar
from exllamav3_adapters.answer_format.harmony_header import ANALYSIS, END, TAGS, HeaderReader
from exllamav3_adapters.answer_format.harmony_vocabulary import load_encoding
from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.contract import ChatAnswer, GenerationParams

NAME: Final = "harmony"


@dataclass(frozen=True, kw_only=True)
class HarmonyFormat:
    """An `AnswerFormat`. `calls` and `tells_reasoning`: False where the settings want them in the text."""

    model_dir: str | None
    calls: bool = True
    tells_reasoning: bool = True

    @property
    def tool_format(self) -> str | None:
        return NAME if self.calls else None

    @property
    def reasoning(self) -> ReasoningTags | None:
        return ReasoningTags(ANALYSIS, END, recurs=True) if self.tells_reasoning else None

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(TAGS)

    @cached_property
    def headers(self) -> HeaderReader:
        """Blocks for a second the first time. Raises `LoadFailed`."""
        return HeaderReader(load_encoding(Path(self.model_dir) if self.model_dir is not None else None))

    def opens_reasoning(self, prompt_text: str) -> bool:
        return prompt_text.endswith(ANALYSIS)

    def prepared(
        self, params: GenerationParams, *, opens_reasoning: bool, special_tokens: Mapping[str, int]
    ) -> GenerationParams:
        assert params.chat is not None
        use = params.chat.tool_use
        banned = params.banned_strings
        if use is not None and use.choice == "none":
            banned = (*banned, "to=functions")
        grammar = harmony_grammar(params, opens_reasoning=opens_reasoning, special_tokens=special_tokens)
        return replace(params, grammar=grammar, banned_strings=banned)

    def parser(self, chat: ChatAnswer, *, opens_reasoning: bool) -> AnswerParser:
        return HarmonyAnswer(
            self.headers,
            chat.tool_use if self.calls else None,
            tells_reasoning=self.tells_reasoning,
            opens_reasoning=opens_reasoning,
        )


def is_written_by(template_sources: Sequence[str]) -> bool:
    """Whether a template's messages have channels."""
    return any(all(tag in source for tag in ("<|start|>", "<|channel|>", "<|message|>")) for source in template_sources)


def load_format(model_dir: str | None, *, calls: bool, tells_reasoning: bool) -> HarmonyFormat:
    """Blocks. Raises `LoadFailed` where the vocabulary of a model's folder cannot be had; without a folder, that
    shows with the first answer."""
    found = HarmonyFormat(model_dir=model_dir, calls=calls, tells_reasoning=tells_reasoning)
    if model_dir is not None:
        assert found.headers
    return found
