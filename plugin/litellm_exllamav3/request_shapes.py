"""The shapes of request bodies, route by route: which JSON type each field has.

LiteLLM checks few of them: it fails on some with a 500, passes others over, and a client then gets an answer to
something that it did not ask. Values are the provider's to check; what is not named here may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from exllamav3_adapters.errors import InvalidRequest

Object: TypeAlias = dict[str, Any]
Whole: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Part(Struct):
    """A content part of any route."""

    type: str | None = None
    text: str | None = None


class _Function(Struct):
    name: str
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class _Tool(Struct):
    type: str | None = None
    function: _Function | None = None


class _CalledFunction(Struct):
    name: str
    arguments: str | Object | None = None


class _ToolCall(Struct):
    function: _CalledFunction
    id: str | None = None
    type: str | None = None


class _ChatMessage(Struct):
    role: str
    content: str | list[str | _Part] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: str | None = None


class _StreamOptions(Struct):
    include_usage: bool | None = None


class _Thinking(Struct):
    type: str
    budget_tokens: Whole | None = None


class _ChatFormat(Struct):
    type: str
    json_schema: Object | None = None


class _Sampled(Struct, kw_only=True):
    """What all routes but one sample with by the same names."""

    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    stream: bool | None = None
    metadata: Object | None = None


class _Chat(_Sampled, kw_only=True):
    messages: Annotated[list[_ChatMessage], Meta(min_length=1)]
    tools: list[_Tool] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = None
    n: Whole | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stream_options: _StreamOptions | None = None
    response_format: _ChatFormat | None = None
    reasoning_effort: str | Object | None = None
    thinking: _Thinking | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class _Completion(_Sampled):
    prompt: str | list[str | Whole | list[Whole]] = ""
    best_of: Whole | None = None
    echo: bool | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: Whole | None = None
    max_tokens: Whole | None = None
    n: Whole | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stream_options: _StreamOptions | None = None
    suffix: str | None = None


class _Block(Struct):
    """A content block of Anthropic's messages."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | UnsetType = UNSET
    input: Object | None = None
    tool_use_id: str | None = None
    content: str | list[Object] | Object | None = None
    thinking: str | None = None
    signature: str | None = None
    is_error: bool | None = None
    source: Object | None = None
    cache_control: Object | None = None


class _SystemBlock(Struct):
    type: str
    text: str
    cache_control: Object | None = None


class _AnthropicMessage(Struct):
    role: str
    content: str | list[_Block]


class _AnthropicTool(Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Object | None = None
    cache_control: Object | None = None


class _AnthropicThinking(Struct):
    type: str
    budget_tokens: Whole | UnsetType = UNSET


class _AnthropicMetadata(Struct):
    user_id: str | None = None


class _AnthropicChoice(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Messages(Struct):
    max_tokens: Whole
    messages: Annotated[list[_AnthropicMessage], Meta(min_length=1)]
    system: str | list[_SystemBlock] | None = None
    tools: list[_AnthropicTool] | None = None
    tool_choice: _AnthropicChoice | None = None
    thinking: _AnthropicThinking | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: _AnthropicMetadata | None = None
    service_tier: str | None = None
    output_config: Object | None = None
    context_management: Object | None = None


class _Item(Struct):
    """An item of a response's input: a message, a call, or a call's result."""

    type: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[_Part] | None = None
    summary: list[_Part] | None = None
    status: str | None = None


class _ResponseTool(Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class _ResponseFormat(Struct):
    type: str
    name: str | None = None
    schema: Object | None = None
    strict: bool | None = None


class _ResponseText(Struct):
    format: _ResponseFormat | None = None
    verbosity: str | None = None


class _Reasoning(Struct):
    effort: str | None = None
    summary: str | None = None


class _Responses(_Sampled, kw_only=True):
    input: str | Annotated[list[_Item], Meta(min_length=1)]
    instructions: str | None = None
    tools: list[_ResponseTool] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Whole | None = None
    max_tool_calls: Whole | None = None
    text: _ResponseText | None = None
    reasoning: _Reasoning | None = None
    top_logprobs: Whole | None = None
    truncation: str | None = None
    store: bool | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    service_tier: str | None = None
    stream_options: Object | None = None
    background: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


_SHAPES: Final[Mapping[str, type[Struct]]] = {
    "acompletion": _Chat,
    "atext_completion": _Completion,
    "anthropic_messages": _Messages,
    "aresponses": _Responses,
}
_PATH: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"^Object missing required field `(?P<name>[^`]*)`$")
_TYPES: Final = re.compile(r"`(?P<types>[^`]*)`")
_JSON_NAMES: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
}


def refuse_misshapen(body: Mapping[str, Any], call_type: str) -> None:
    """Raises `InvalidRequest`, which names the place and never quotes. `call_type` is LiteLLM's name of the route.

    Takes some tens of microseconds for a long chat.
    """
    shape = _SHAPES.get(call_type)
    if shape is None:
        return
    try:
        msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None


def _refusal(message: str) -> InvalidRequest:
    """msgspec's words in JSON's, and its path as clients write it."""
    found = _PATH.search(message)
    path = found["path"] if found is not None else ""
    fault = _PATH.sub("", message)
    if (missing := _MISSING.match(fault)) is not None:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidRequest(f"{path} is missing.", path)
    fault = _TYPES.sub(
        lambda types: _json_names(types["types"]), fault.replace("Expected", "must be").replace("got", "not")
    )
    return InvalidRequest(f"{path or 'the request'} {fault}.", path or None)


def _json_names(types: str) -> str:
    names = [_JSON_NAMES.get(name, name) for name in types.split(" | ") if name != "null"]
    return " or ".join(names) or "null"
