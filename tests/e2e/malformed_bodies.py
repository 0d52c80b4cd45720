"""Bodies of every route with one fault in them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

Path: TypeAlias = tuple[str | int, ...]

_TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION = {"name": "get_weather", "description": "Weather of a city.", "parameters": _TOOL_SCHEMA}
_HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "user", "content": "say: seven"},
]
GOOD_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": _HISTORY,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["x", "y"],
        "seed": 3,
        "n": 1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "logit_bias": {"50": 1},
        "logprobs": True,
        "top_logprobs": 2,
        "stream": False,
        "reasoning_effort": "low",
    },
    "/v1/completions": {
        "model": "tiny",
        "prompt": "say: seven",
        "max_tokens": 8,
        "temperature": 0.5,
        "stop": ["x"],
        "n": 1,
        "seed": 3,
        "stream": False,
    },
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 8,
        "system": [{"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Weather in Oslo?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
            {"role": "user", "content": [{"type": "text", "text": "say: seven"}]},
        ],
        "tools": [{"name": "get_weather", "description": "Weather.", "input_schema": _TOOL_SCHEMA}],
        "tool_choice": {"type": "auto"},
        "temperature": 0.5,
        "top_k": 5,
        "stop_sequences": ["x"],
        "thinking": {"type": "disabled"},
        "stream": False,
    },
    "/v1/responses": {
        "model": "tiny",
        "instructions": "You are terse.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {"role": "user", "content": "say: seven"},
        ],
        "tools": [{"type": "function", **_FUNCTION}],
        "tool_choice": "auto",
        "max_output_tokens": 8,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "stream": False,
    },
}

_FREE = frozenset({"parameters", "input_schema", "metadata", "input", "cache_control"})
"""Fields that hold any JSON object: what is in them is the client's own."""
_OTHER_KINDS: dict[str, tuple[type, ...]] = {
    "content": (str, list),
    "system": (str, list),
    "input": (str, list, dict),
    "prompt": (str, list),
    "stop": (str, list),
    "output": (str, list),
    "tool_choice": (str, dict),
    "arguments": (str, dict),
    "reasoning_effort": (str, dict),
}
"""Fields that may be of several types."""
JUNK: tuple[Any, ...] = (
    True,
    -1,
    0,
    1.5,
    1e300,
    2**70,
    "",
    "junk",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [[]],
    [None],
    [1],
    ["junk"],
    [{}],
    {"type": "junk"},
    {"type": None},
    {"type": []},
    {"type": {}},
    {"junk": {"junk": "junk"}},
    [{"type": "text"}],
    [{"role": "user"}],
    [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}],
)


@dataclass(frozen=True)
class Malformed:
    route: str
    body: dict[str, Any]
    fault: str
    """What was done to a good body, for the report of a failure."""
    must_be_refused: bool
    """No reading of the route takes a value of that type there."""


def paths(value: Any, before: Path = ()) -> Iterator[Path]:
    """Every place in a JSON value, the value itself left out."""
    steps: Sequence[str | int] = ()
    if isinstance(value, dict):
        steps = list(value)
    elif isinstance(value, list):
        steps = range(len(value))
    for step in steps:
        path = (*before, step)
        yield path
        yield from paths(value[step], path)


def changed(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy with another value in one place."""
    found = copy.deepcopy(body)
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return found


def _kind(value: Any) -> type:
    """Its JSON type; a whole number is a number too."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def must_be_refused(body: dict[str, Any], path: Path, value: Any) -> bool:
    """Whether no reading of the route takes a value of that type in that place."""
    if any(step in _FREE for step in path[:-1]):
        return False
    place: Any = body
    for step in path:
        place = place[step]
    welcome = _OTHER_KINDS.get(str(path[-1]), ()) if isinstance(path[-1], str) else ()
    return _kind(value) is not _kind(place) and type(value) not in welcome


@st.composite
def requests_with_a_fault(draw: st.DrawFn) -> Malformed:
    """A good body with one value replaced by another; often, not always, by one of another type."""
    route = draw(st.sampled_from(sorted(GOOD_BODIES)))
    body = GOOD_BODIES[route]
    path = draw(st.sampled_from([path for path in paths(body) if path != ("model",)]))
    value = draw(st.sampled_from(JUNK))
    return Malformed(
        route=route,
        body=changed({**body, "stream": draw(st.booleans())}, path, value),
        fault=f"{path} = {str(value)[:60]!r}",
        must_be_refused=must_be_refused(body, path, value),
    )
