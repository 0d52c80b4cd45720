"""The parameters of a text completion that are no matter of sampling (`request_params.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from exllamav3_adapters.contract import GenerationParams, Grammar
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.copies import MOST_COPIES
from litellm_exllamav3.json_values import boolean, whole_number
from litellm_exllamav3.output_grammar import CONSTRAINTS, read_grammar
from litellm_exllamav3.request_params import READ_ELSEWHERE

MOST_LOGPROBS: Final = 5
_STARTS: Final = ("add_special_tokens", "add_bos_token")
"""vLLM's and TabbyAPI's name for one thing."""
_OWN: Final = frozenset({*CONSTRAINTS, *_STARTS, "n", "best_of", "logprobs"})


@dataclass(frozen=True, kw_only=True, slots=True)
class TextParams:
    num_choices: int = 1
    """Answers to each prompt."""
    top_logprobs: int | None = None
    """None: no probabilities."""
    grammar: Grammar | None = None
    starts_text: bool = True
    """Whether a prompt that is text begins with what the model's tokenizer puts before one."""

    def of_generation(self, sampling: GenerationParams) -> GenerationParams:
        return replace(sampling, chat=None, grammar=self.grammar, top_logprobs=self.top_logprobs)


def read_text_params(params: Mapping[str, Any], *, drop_unsupported: bool = False) -> TextParams:
    """Reads the flat parameters (see `flat_params`). Raises `InvalidRequest`, which names the parameter.

    What belongs to chats is refused, or left out with `drop_unsupported`.
    """
    for name in () if drop_unsupported else params:
        if name in READ_ELSEWHERE and name not in _OWN:
            raise InvalidRequest(f"{name} is for chats, and this is plain text: use /v1/chat/completions.", name)
    num_choices = whole_number("n", params.get("n", 1), low=1, high=MOST_COPIES)
    best_of = whole_number("best_of", params.get("best_of", num_choices), low=1, high=MOST_COPIES)
    if best_of not in (1, num_choices):
        raise InvalidRequest("best_of must be 1 or equal to n; answers are not ranked here.", "best_of")
    logprobs = params.get("logprobs")
    return TextParams(
        num_choices=num_choices,
        top_logprobs=None if logprobs is None else whole_number("logprobs", logprobs, low=0, high=MOST_LOGPROBS),
        grammar=read_grammar(params),
        starts_text=all(boolean(name, params.get(name, True)) for name in _STARTS),
    )


def sampling_params(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is left for `generation_params`, which would not know the rest."""
    return {name: value for name, value in params.items() if name not in _STARTS}
