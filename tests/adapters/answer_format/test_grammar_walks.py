"""Whatever a form's grammar lets a model write is read as a call that is valid against the tool's schema."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import llguidance
import pytest
from read_answer import CLOCK, read_answer

from exllamav3_adapters.answer_format.answer_parser import TaggedAnswer
from exllamav3_adapters.answer_format.tool_formats import TOOL_FORMATS
from exllamav3_adapters.contract import ToolUse

BYTES = llguidance.LLTokenizer("byte")
MAX_BYTES = 50_000
ENDS = ["</parameter>", "\n</parameter>", "</｜DSML｜parameter>", "</arg_value>", '<|"|>', '"', "\n", "}", "]", ","]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "Color": {"enum": ["red", "green <b>", 'a "quoted" one']},
        "Point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
            "required": ["x", "label"],
            "additionalProperties": False,
        },
    },
    "properties": {
        "short": {"type": "string", "minLength": 2, "maxLength": 6},
        "long": {"type": "string", "minLength": 3},
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]+$"},
        "day": {"type": "string", "format": "date"},
        "color": {"$ref": "#/$defs/Color"},
        "maybe": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
        "flag": {"type": ["boolean", "null"]},
        "level": {"type": "integer", "minimum": 1, "maximum": 9},
        "mode": {"const": 3},
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 1, "maxItems": 2},
        "where": {"allOf": [{"$ref": "#/$defs/Point"}]},
        "text": {"type": "string"},
    },
    "required": ["color", "level", "points", "short", "where"],
    "additionalProperties": False,
}
TOOLS = ({"type": "function", "function": {"name": "draw", "parameters": SCHEMA}}, CLOCK)


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("seed", range(6))
def test_what_a_grammar_allows_is_a_valid_call(name: str, seed: int) -> None:
    form = TOOL_FORMATS[name]
    written = walk(form.grammar(TOOLS, parallel=seed % 2 == 0), random.Random(seed))
    answer = read_answer(TaggedAnswer(form, None, ToolUse(tools=TOOLS), opens_reasoning=False), [written])
    assert answer.text == ""
    assert answer.calls
    for tool, arguments in answer.arguments:
        assert tool in ("draw", "read_clock")
        if tool == "draw":
            jsonschema.validate(arguments, SCHEMA)


def walk(rules: str, choice: random.Random) -> str:
    """A text that the grammar takes, by chance; where it lets much stand, the ends of values are likely."""
    grammar = llguidance.LLMatcher.grammar_from_lark("start: calls\n" + rules)
    assert not llguidance.LLMatcher.validate_grammar(grammar, BYTES)
    matcher = llguidance.LLMatcher(BYTES, grammar)
    written = bytearray()
    while not (matcher.is_accepting() and (matcher.is_stopped() or choice.random() < 0.5)):
        assert len(written) < MAX_BYTES, "the walk does not come to an end"
        allowed = [byte for byte, bias in enumerate(matcher.compute_logit_bias()[:256]) if bias]
        allowed = [byte for byte in allowed if byte in b"\n\t" or 32 <= byte < 127] or allowed
        assert allowed, f"a dead end: {matcher.get_error()} {bytes(written[-80:])!r}"
        taken = _end(matcher, choice) if len(allowed) > 8 and choice.random() < 0.3 else b""
        if not taken:
            taken = bytes([choice.choice(allowed)])
            assert matcher.consume_token(taken[0])
        written += taken
    return written.decode()


def _end(matcher: llguidance.LLMatcher, choice: random.Random) -> bytes:
    """As much as the grammar takes of the end of a value, which may be the middle of a text."""
    end = choice.choice(ENDS).encode()
    return end[: matcher.try_consume_tokens(list(end))]
