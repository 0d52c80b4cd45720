"""The form of one model's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from exllamav3_adapters.answer_format import reasoning_tags
from exllamav3_adapters.answer_format.answer_grammar import answer_grammar
from exllamav3_adapters.answer_format.answer_parser import AnswerParser, TaggedAnswer
from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.answer_format.tool_format import ToolFormat
from exllamav3_adapters.contract import ChatAnswer, GenerationParams


class AnswerFormat(Protocol):
    """Found once a load (`find_format.py`), the same for all answers."""

    @property
    def tool_format(self) -> str | None:
        """Its name in the settings. None: calls are not known."""

    @property
    def reasoning(self) -> ReasoningTags | None:
        """What begins and ends reasoning, as far as a budget has to know. None: the model is not known to reason."""

    @property
    def tags(self) -> frozenset[str]:
        """Texts that must reach the parser even where the tokenizer has them as special tokens."""

    def opens_reasoning(self, prompt_text: str) -> bool:
        """Whether a rendered prompt ends inside reasoning."""

    def prepared(
        self, params: GenerationParams, *, opens_reasoning: bool, special_tokens: Mapping[str, int]
    ) -> GenerationParams:
        """What is sampled with, so that the answer keeps to `params.chat` and `params.grammar`: a grammar of the
        whole answer, markup included, and texts and tokens that must not come. `special_tokens` are all texts that
        the tokenizer has as special tokens, with their ids. Raises `InvalidRequest`."""

    def parser(self, chat: ChatAnswer, *, opens_reasoning: bool) -> AnswerParser: ...


@dataclass(frozen=True, kw_only=True)
class TaggedFormat:
    """An `AnswerFormat` of reasoning between tags, and calls in one of `tool_formats.py`."""

    tools: ToolFormat | None = None
    reasoning: ReasoningTags | None = None
    frame: tuple[str, ...] = ()
    """Tags around the text of an answer, which are no part of it."""

    @property
    def tool_format(self) -> str | None:
        return self.tools.name if self.tools is not None else None

    @property
    def tags(self) -> frozenset[str]:
        calls = self.tools.tags if self.tools is not None else ()
        return frozenset(
            (*calls, *self.frame, *((self.reasoning.start, self.reasoning.end) if self.reasoning is not None else ()))
        )

    def opens_reasoning(self, prompt_text: str) -> bool:
        return self.reasoning is not None and reasoning_tags.opens_reasoning(prompt_text, self.reasoning)

    def prepared(
        self, params: GenerationParams, *, opens_reasoning: bool, special_tokens: Mapping[str, int]
    ) -> GenerationParams:
        assert params.chat is not None
        grammar = answer_grammar(
            self.tools, self.reasoning, params, opens_reasoning=opens_reasoning, special_tokens=special_tokens
        )
        prepared = replace(params, grammar=grammar)
        use = params.chat.tool_use
        if use is None or use.choice != "none" or self.tools is None:
            return prepared
        return without_texts(prepared, self.tools.openings, special_tokens)

    def parser(self, chat: ChatAnswer, *, opens_reasoning: bool) -> AnswerParser:
        return TaggedAnswer(
            self.tools, self.reasoning, chat.tool_use, opens_reasoning=opens_reasoning, frame=self.frame
        )


def without_texts(
    params: GenerationParams, texts: Sequence[str], special_tokens: Mapping[str, int]
) -> GenerationParams:
    """These texts are not generated, nor the special tokens that begin them."""
    token_ids = [
        token_id for token, token_id in special_tokens.items() if any(text.startswith(token) for text in texts)
    ]
    return replace(
        params,
        banned_strings=(*params.banned_strings, *texts),
        banned_tokens=(*params.banned_tokens, *token_ids),
    )
