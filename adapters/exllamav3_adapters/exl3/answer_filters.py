"""The filters of a job: what keeps its answer to a grammar, and its reasoning to a budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from exllamav3.generator.filter.llguidance import create_ll_tokenizer
from llguidance import LLMatcher

from exllamav3_adapters.answer_format.answer_grammar import as_lark
from exllamav3_adapters.answer_format.lark import json_schemas
from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.contract import GenerationParams, Grammar
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.exl3.grammar_fault import grammar_fault
from exllamav3_adapters.exl3.grammar_filter import GrammarFilter
from exllamav3_adapters.exl3.guarded_filter import GuardedFilter
from exllamav3_adapters.exl3.reasoning_budget import ReasoningBudget

MAX_GRAMMARS: Final = 32
"""Compiled ones that are kept: a client's tools and schemas come with every turn, and large ones take 0.1 s."""


class AnswerFilters:
    """Makes filters, for one tokenizer. Not safe for several threads. Compiling would hold up a batch, so it is not for
    the scheduler's."""

    def __init__(self, tokenizer: Any, reasoning: ReasoningTags | None, pieces: Sequence[str]) -> None:
        """`pieces`: the text of each token, with the tags of the model's form as text."""
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        self._pieces = pieces
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()

    def are_needed(self, params: GenerationParams) -> bool:
        return params.grammar is not None or self._budget(params) is not None

    def build(self, params: GenerationParams, *, opens_reasoning: bool) -> list[Any]:
        """Raises `InvalidRequest` for a grammar that cannot be followed, and for bans of what must come."""
        filters: list[Any] = []
        budget = self._budget(params)
        if budget is not None:
            assert self._reasoning is not None
            filters.append(
                ReasoningBudget(self._tokenizer, self._reasoning, budget, self._pieces, is_open=opens_reasoning)
            )
            _check_bans(params, self._reasoning, filters[-1].forced_ids)
        if params.grammar is not None:
            filters.append(
                GrammarFilter(
                    self._tokenizer,
                    self._matcher(params),
                    end_ids=self._tokenizer.config.eos_token_id_list,
                    banned_ids=params.banned_tokens,
                    min_tokens=params.min_tokens,
                )
            )
        return [GuardedFilter(each) for each in filters]

    def _budget(self, params: GenerationParams) -> int | None:
        return params.chat.reasoning_budget if params.chat is not None and self._reasoning is not None else None

    def _matcher(self, params: GenerationParams) -> Any:
        """At the beginning of the grammar."""
        grammar = params.grammar
        assert grammar is not None
        matcher = self._compiled.pop(grammar, None) or self._compile(grammar, params)
        self._compiled[grammar] = matcher
        if len(self._compiled) > MAX_GRAMMARS:
            self._compiled.popitem(last=False)
        return matcher

    def _compile(self, grammar: Grammar, params: GenerationParams) -> Any:
        source = as_lark(grammar)
        matcher = LLMatcher(create_ll_tokenizer(self._tokenizer), LLMatcher.grammar_from_lark(source), log_level=0)
        if matcher.is_error():
            raise grammar_fault(matcher.get_error(), json_schemas(source), params)
        return matcher


def _check_bans(params: GenerationParams, tags: ReasoningTags, forced_ids: Sequence[int]) -> None:
    for text in params.banned_strings:
        if text.lower() in tags.forced_end.lower():
            raise InvalidRequest(
                f"banned_strings holds {text!r}, with which reasoning ends that is past its budget", "banned_strings"
            )
    for token_id in params.banned_tokens:
        if token_id in forced_ids:
            raise InvalidRequest(
                f"banned_tokens holds {token_id}, with which reasoning ends that is past its budget", "banned_tokens"
            )
