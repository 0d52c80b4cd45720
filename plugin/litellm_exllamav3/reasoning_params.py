"""How much an answer may think first, from OpenAI's, Anthropic's and the engines' own ways to ask.

Nothing is set where the client asked nothing: the template has its own default then. Where two ways disagree the more
particular wins: a plain `enable_thinking` over `thinking`, that over `reasoning_effort`; what the client gives the
template itself, in `chat_template_kwargs`, wins over all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.json_values import boolean, json_kind, one_of, whole_number

_TEMPLATE_EFFORTS: Final[Mapping[str, str | None]] = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
    "default": None,
}
"""Effort -> the nearest that templates know. OpenAI's, Anthropic's `max`, and `default`, which asks for nothing."""
_THINKING_TYPES: Final = ("enabled", "disabled", "adaptive")
_MOST_TOKENS: Final = 2**31 - 1

BUDGETS: Final = ("reasoning_budget", "thinking_budget", "thinking_token_budget", "reasoning_budget_tokens")
"""llama.cpp's, Qwen's, vLLM's and TabbyAPI's name for one thing. -1: no limit; 0: no reasoning."""
SWITCHES: Final = ("enable_thinking", "thinking")
"""What templates call it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningParams:
    """`enabled` is None where the client left it to the model."""

    enabled: bool | None = None
    effort: str | None = None
    """`low`, `medium` or `high`."""
    budget: int | None = None
    """Most tokens of reasoning."""

    @property
    def template_variables(self) -> dict[str, Any]:
        variables: dict[str, Any] = {}
        if self.enabled is not None:
            variables.update(dict.fromkeys(SWITCHES, self.enabled))
        if self.effort is not None and self.enabled is not False:
            variables["reasoning_effort"] = self.effort
        if self.budget is not None:
            variables["thinking_budget"] = self.budget
        return variables


def read_reasoning(params: Mapping[str, Any]) -> ReasoningParams:
    """Raises `InvalidRequest`, which names the parameter."""
    enabled, effort = _read_effort(params.get("reasoning_effort"))
    switched, budget = _read_thinking(params.get("thinking"))
    enabled = enabled if switched is None else switched
    for name in BUDGETS:
        if name in params:
            tokens = whole_number(name, params[name], low=-1, high=_MOST_TOKENS)
            budget = None if tokens < 0 else tokens
    if budget == 0:
        enabled, budget = False, None
    if "enable_thinking" in params:
        enabled = boolean("enable_thinking", params["enable_thinking"])
    return ReasoningParams(enabled=enabled, effort=effort, budget=budget if enabled is not False else None)


def _read_effort(value: Any) -> tuple[bool | None, str | None]:
    if isinstance(value, Mapping):  # the responses route's {"effort": ..., "summary": ...}
        value = value.get("effort")
    if value is None:
        return None, None
    effort = one_of("reasoning_effort", value, _TEMPLATE_EFFORTS)
    if effort == "default":
        return None, None
    return effort != "none", _TEMPLATE_EFFORTS[effort]


def _read_thinking(value: Any) -> tuple[bool | None, int | None]:
    """A plain boolean is what some templates' clients send."""
    if value is None or isinstance(value, bool):
        return value, None
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f'thinking must be {{"type": "enabled" or "disabled"}}, not {json_kind(value)}.', "thinking"
        )
    kind = one_of("thinking.type", value.get("type"), _THINKING_TYPES)
    budget = value.get("budget_tokens") if kind == "enabled" else None
    if budget is not None:
        whole_number("thinking.budget_tokens", budget, low=0, high=_MOST_TOKENS)
    # `adaptive` leaves it to the model whether to think, and how long.
    return (None if kind == "adaptive" else kind == "enabled"), budget
