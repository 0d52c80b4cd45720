"""How one chat is to be answered, beyond the sampling of its tokens: tools, grammar, reasoning, logprobs, copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from exllamav3_adapters.contract import Chat, ChatAnswer, GenerationParams, Grammar
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.copies import MOST_COPIES
from litellm_exllamav3.json_values import boolean, one_of, whole_number
from litellm_exllamav3.output_grammar import CONSTRAINTS, constraint_name, read_grammar
from litellm_exllamav3.reasoning_params import BUDGETS, SWITCHES, read_reasoning
from litellm_exllamav3.tool_choice import read_tool_use

MOST_TOP_LOGPROBS: Final = 20
_VERBOSITIES: Final = ("low", "medium", "high")

ANSWER_KEYS: Final = (
    frozenset(CONSTRAINTS)
    | frozenset(BUDGETS)
    | frozenset(SWITCHES)
    | {
        "tool_choice",
        "parallel_tool_calls",
        "logprobs",
        "top_logprobs",
        "n",
        "best_of",
        "reasoning_effort",
        "verbosity",
    }
)
"""Parameters that are read here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerParams:
    """What `GenerationParams` and the template are told of the answer."""

    chat: ChatAnswer
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    num_choices: int = 1
    """`n`. The engine's batch size bounds it, which is known once the engine is loaded."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """Those that follow from the parameters; the client's own `chat_template_kwargs` win over them."""

    def of_generation(self, sampling: GenerationParams) -> GenerationParams:
        """`sampling`, and how the answer is taken apart."""
        return replace(sampling, chat=self.chat, grammar=self.grammar, top_logprobs=self.top_logprobs)

    def of_chat(self, chat: Chat) -> Chat:
        """`chat` with the template's variables, and without the tools that `tool_choice` does not allow."""
        tools = chat.tools if self.chat.tool_use is None else self.chat.tool_use.tools
        return replace(chat, tools=tools, template_variables={**self.template_variables, **chat.template_variables})


def read_answer_params(params: Mapping[str, Any], chat: Chat) -> AnswerParams:
    """Reads the flat parameters of one chat (see `flat_params`). Raises `InvalidRequest`, which names the parameter."""
    tool_use = read_tool_use(params, chat.tools)
    grammar = read_grammar(params)
    if grammar is not None and tool_use is not None and tool_use.choice == "required":
        name = constraint_name(params)
        raise InvalidRequest(
            f"{name} and a tool_choice that demands a call both constrain the output; send one of them.", name
        )
    clients_own = chat.template_variables
    variables = template_variables(params, clients_own)
    return AnswerParams(
        chat=ChatAnswer(
            tool_use=tool_use,
            reasoning=all({**variables, **clients_own}.get(name) is not False for name in SWITCHES),
            reasoning_budget=read_reasoning(params).budget,
        ),
        grammar=grammar,
        top_logprobs=_read_logprobs(params),
        num_choices=_read_num_choices(params),
        template_variables=variables,
    )


def template_variables(params: Mapping[str, Any], clients_own: Mapping[str, Any]) -> dict[str, Any]:
    """Those that follow from the parameters. `clients_own`: the request's `chat_template_kwargs`, which win over them.

    Raises `InvalidRequest`, which names the parameter.
    """
    variables = read_reasoning(params).template_variables
    if "verbosity" in params:
        variables["verbosity"] = one_of("verbosity", params["verbosity"], _VERBOSITIES)
    if any(name in clients_own for name in SWITCHES):
        return {name: value for name, value in variables.items() if name not in SWITCHES}
    return variables


def _read_logprobs(params: Mapping[str, Any]) -> int | None:
    wanted = boolean("logprobs", params.get("logprobs", False))
    num_top = whole_number("top_logprobs", params.get("top_logprobs", 0), low=0, high=MOST_TOP_LOGPROBS)
    if num_top and not wanted:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    return num_top if wanted else None


def _read_num_choices(params: Mapping[str, Any]) -> int:
    num_choices = whole_number("n", params.get("n", 1), low=1, high=MOST_COPIES)
    best_of = whole_number("best_of", params.get("best_of", num_choices), low=1, high=MOST_COPIES)
    if best_of not in (1, num_choices):
        raise InvalidRequest("best_of must be 1 or equal to n; answers are not ranked here.", "best_of")
    return num_choices
