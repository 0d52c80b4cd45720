"""Every field of an OpenAI or Anthropic request, and what becomes of it with an exllamav3 model.

The README's table is made of this one (`request_fields_reference.py`), and a test holds it to the fields of the
installed clients and to what the code does. On the routes that LiteLLM translates, where it drops fields without a
word, `field_check.py` acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Treatment(StrEnum):
    SUPPORTED = "supported"
    TRANSLATED = "translated"
    """It has its effect in another form: by LiteLLM's bridge, or as a variable of the chat template."""
    IGNORED = "ignored"
    """The answer is none the worse for it."""
    WARNED = "ignored with a warning"
    """The answer may be other than its sender hopes, yet usual clients send it: a line in the proxy's log, once."""
    REFUSED = "refused"
    """400: the answer would be other than asked."""


SUPPORTED, TRANSLATED, IGNORED, WARNED, REFUSED = Treatment


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    treatment: Treatment
    note: str = ""
    asks_for_nothing: tuple[Any, ...] = ()
    """Values beside null that pass where the field is refused, and bring no warning where it is ignored with one."""

    def asks(self, value: Any) -> bool:
        """Whether this value asks for an effect."""
        return value is not None and not any(type(value) is type(no) and value == no for no in self.asks_for_nothing)


_CACHED: Final = "every prefix is cached by itself"
_ACCOUNTING: Final = "LiteLLM's logs and budgets use it"
_LOCAL: Final = "there is one tier, this machine"
_NO_MODERATION: Final = "nothing is moderated here"
_TOO_LONG: Final = "a chat that does not fit is a 400 with `context_length_exceeded`"

_CHAT: Final = (
    Field("model", SUPPORTED, "an alias of the config"),
    Field(
        "messages",
        SUPPORTED,
        "text, and images where the model has vision (`model.vision`); audio and files are refused",
    ),
    Field("max_completion_tokens", SUPPORTED, "wins over `max_tokens`"),
    Field("max_tokens", SUPPORTED),
    Field("temperature", SUPPORTED),
    Field("top_p", SUPPORTED),
    Field("presence_penalty", SUPPORTED),
    Field("frequency_penalty", SUPPORTED),
    Field("logit_bias", SUPPORTED, "token ids of the model's own tokenizer"),
    Field("seed", SUPPORTED, "64 bits; several choices take it and those that follow"),
    Field("stop", SUPPORTED, "up to 16, where OpenAI takes 4"),
    Field("n", SUPPORTED, "up to `max_batch_size`; the prompt is read and counted once"),
    Field("logprobs", SUPPORTED, "of the raw distribution, before temperature and filters"),
    Field("top_logprobs", SUPPORTED, "0 to 20, with `logprobs`"),
    Field("tools", SUPPORTED, "functions; tools that a provider runs itself are refused"),
    Field("tool_choice", SUPPORTED, "`required` and a named function are enforced by a grammar; also `allowed_tools`"),
    Field("parallel_tool_calls", SUPPORTED),
    Field("response_format", SUPPORTED, "`json_object` and `json_schema` are enforced by a grammar, `strict` or not"),
    Field("stream", SUPPORTED),
    Field("stream_options", SUPPORTED),
    Field("reasoning_effort", TRANSLATED, "to the template's `enable_thinking`, `thinking` and `reasoning_effort`"),
    Field("verbosity", TRANSLATED, "to the template's `verbosity`, which few templates read"),
    Field("modalities", REFUSED, 'other than `["text"]`', (["text"],)),
    Field("audio", REFUSED, "models read and write text"),
    Field("functions", REFUSED, "use `tools`", ([],)),
    Field("function_call", REFUSED, "use `tool_choice`", ("none", "auto")),
    Field("web_search_options", REFUSED, "nothing is searched here"),
    Field("moderation", REFUSED, _NO_MODERATION),
    Field("store", WARNED, "nothing is stored here to be fetched later", (False,)),
    Field("context_management", WARNED, _TOO_LONG, ([],)),
    Field("prediction", IGNORED, "it changes no answer"),
    Field("prompt_cache_key", IGNORED, _CACHED),
    Field("prompt_cache_options", IGNORED, _CACHED),
    Field("prompt_cache_retention", IGNORED, _CACHED),
    Field("service_tier", IGNORED, _LOCAL),
    Field("metadata", IGNORED, _ACCOUNTING),
    Field("user", IGNORED, _ACCOUNTING),
    Field("safety_identifier", IGNORED),
)

_COMPLETIONS: Final = (
    Field("model", SUPPORTED, "an alias of the config"),
    Field("prompt", SUPPORTED, "raw, no chat template; text or token ids, one prompt or several"),
    Field("max_tokens", SUPPORTED),
    Field("temperature", SUPPORTED),
    Field("top_p", SUPPORTED),
    Field("presence_penalty", SUPPORTED),
    Field("frequency_penalty", SUPPORTED),
    Field("logit_bias", SUPPORTED, "token ids of the model's own tokenizer"),
    Field("seed", SUPPORTED),
    Field("stop", SUPPORTED, "up to 16"),
    Field("stream", SUPPORTED),
    Field("stream_options", SUPPORTED),
    Field("n", SUPPORTED, "up to `max_batch_size`"),
    Field("best_of", SUPPORTED, "1 or equal to `n`"),
    Field("logprobs", SUPPORTED, "0 to 5"),
    Field("echo", REFUSED, "", (False,)),
    Field("suffix", REFUSED, "", ("",)),
    Field("user", IGNORED, _ACCOUNTING),
)

_RESPONSES: Final = (
    Field("model", SUPPORTED, "an alias of the config"),
    Field("input", TRANSLATED, "to messages; text, and images where the model has vision"),
    Field("instructions", TRANSLATED, "to a system message"),
    Field("max_output_tokens", TRANSLATED, "to `max_tokens`"),
    Field("temperature", SUPPORTED),
    Field("top_p", SUPPORTED),
    Field("stream", SUPPORTED),
    Field("tools", TRANSLATED, "functions; tools that a provider runs itself are refused"),
    Field("tool_choice", TRANSLATED, "enforced as in chats"),
    Field("parallel_tool_calls", SUPPORTED),
    Field("text", TRANSLATED, "`format` to `response_format`, `verbosity` as in chats"),
    Field("reasoning", TRANSLATED, "`effort` to `reasoning_effort`; `summary` has no effect"),
    Field("previous_response_id", REFUSED, "unless the proxy has a database, where LiteLLM keeps responses"),
    Field("conversation", REFUSED, "send the whole conversation as `input`"),
    Field("prompt", REFUSED, "OpenAI's stored prompts are not here"),
    Field("background", REFUSED, "", (False,)),
    Field("background_options", REFUSED),
    Field("top_logprobs", REFUSED, "LiteLLM loses them on this route; use the chat route", (0,)),
    Field("moderation", REFUSED, _NO_MODERATION),
    Field("context_management", WARNED, _TOO_LONG, ([],)),
    Field("truncation", WARNED, _TOO_LONG, ("disabled",)),
    Field("store", IGNORED, "LiteLLM keeps responses where the proxy has a database"),
    Field("include", IGNORED, "there is nothing more to include"),
    Field("max_tool_calls", IGNORED, "it bounds tools that a provider runs itself"),
    Field("image", IGNORED, "no image is made here; images to be read go into `input`"),
    Field("stream_options", IGNORED, "usage is always in the last event"),
    Field("access_programs", IGNORED),
    Field("prompt_cache_key", IGNORED, _CACHED),
    Field("prompt_cache_options", IGNORED, _CACHED),
    Field("prompt_cache_retention", IGNORED, _CACHED),
    Field("service_tier", IGNORED, _LOCAL),
    Field("metadata", IGNORED, _ACCOUNTING),
    Field("user", IGNORED, _ACCOUNTING),
    Field("safety_identifier", IGNORED),
)

_MESSAGES: Final = (
    Field("model", SUPPORTED, "an alias of the config"),
    Field(
        "messages",
        TRANSLATED,
        "to OpenAI's form; text, thinking, tool calls and results, and images where the model has vision",
    ),
    Field("system", TRANSLATED, "to a system message"),
    Field("max_tokens", SUPPORTED),
    Field("temperature", SUPPORTED),
    Field("top_p", SUPPORTED),
    Field("top_k", SUPPORTED),
    Field("stop_sequences", TRANSLATED, "to `stop`, up to 16"),
    Field("stream", SUPPORTED),
    Field("tools", TRANSLATED, "to functions; tools that Anthropic runs or defines are refused"),
    Field("tool_choice", TRANSLATED, "enforced as in chats"),
    Field("thinking", TRANSLATED, "as `reasoning_effort` in chats; the budget is enforced"),
    Field("output_config", TRANSLATED, "`format` to `response_format`, `effort` with adaptive thinking"),
    Field("output_format", TRANSLATED, "to `response_format`"),
    Field("container", REFUSED, "nothing is executed here"),
    Field("mcp_servers", REFUSED, "nothing is executed here", ([],)),
    Field("context_management", WARNED, _TOO_LONG),
    Field("speed", WARNED, _LOCAL, ("standard",)),
    Field("cache_control", IGNORED, _CACHED),
    Field("service_tier", IGNORED, _LOCAL),
    Field("inference_geo", IGNORED, "the request stays on this machine"),
    Field("diagnostics", IGNORED),
    Field("metadata", IGNORED, _ACCOUNTING),
    Field("user_profile_id", IGNORED),
    Field("workspace_id", IGNORED),
)


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    fields: Sequence[Field]


ROUTES: Final[Mapping[str, Route]] = {
    "acompletion": Route("/v1/chat/completions", _CHAT),
    "atext_completion": Route("/v1/completions", _COMPLETIONS),
    "aresponses": Route("/v1/responses", _RESPONSES),
    "anthropic_messages": Route("/v1/messages", _MESSAGES),
}
"""By LiteLLM's name of the route."""
