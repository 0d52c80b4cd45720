"""One grammar for a whole answer: its reasoning, and then what the request asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from exllamav3_adapters.answer_format.json_schema import SchemaFault
from exllamav3_adapters.answer_format.lark import json_value, literal, regex, with_special_tokens
from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.answer_format.tool_format import CallGrammar, tool_name
from exllamav3_adapters.contract import GenerationParams, Grammar, Tool, ToolUse
from exllamav3_adapters.errors import InvalidRequest

FORMAT_PARAM: Final = "response_format"
_SPACE: Final = r"/[ \n]{1,4}/"
"""What models write behind their reasoning. Bounded: a small one can go on with it for ever."""


def answer_grammar(
    tools: CallGrammar | None,
    reasoning: ReasoningTags | None,
    params: GenerationParams,
    *,
    opens_reasoning: bool,
    special_tokens: Mapping[str, int],
) -> Grammar | None:
    """None: nothing is asked of the answer's form.

    Required calls come alone, whatever grammar the text would have; where calls are left to the model, the answer is
    either calls or text of that grammar. Reasoning comes first, of any text but its own end, which is the only way out
    of it. Raises `InvalidRequest` for calls that cannot be required, and for schemas that cannot be enforced.
    """
    assert params.chat is not None
    bodies: list[str] = []
    rules: list[str] = []
    use = params.chat.tool_use
    if use is not None and (
        use.choice == "required" or (use.choice == "auto" and params.grammar is not None and tools)
    ):
        bodies.append("calls")
        rules.append(with_special_tokens(_calls(tools, use), special_tokens))
    if params.grammar is not None and (use is None or use.choice != "required"):
        bodies.append("text")
        rules.append(f"text: {embedded(params.grammar)}")
    if not bodies:
        return None
    reasons = reasoning is not None and (opens_reasoning or params.chat.reasoning)
    if not reasons and bodies == ["text"]:
        return params.grammar
    start = f"({' | '.join(bodies)})"
    if reasoning is not None and reasons:
        begun = f"reasoned {_SPACE}?"
        start = f"{begun if opens_reasoning else f'(reasoning_start {begun})?'} {start}"
        rules.append(_reasoning(reasoning, special_tokens))
    return Grammar(kind="lark", source="\n".join([f"start: {start}", *rules]))


def _calls(tools: CallGrammar | None, use: ToolUse) -> str:
    if tools is None:
        raise InvalidRequest(
            "a call cannot be required of this model, since the form of its calls is not known; use tool_choice auto, "
            "or set model.tool_format",
            "tool_choice",
        )
    called = [tool for tool in use.tools if use.function in (None, tool_name(tool))]
    if not called:
        raise InvalidRequest("tool_choice requires a call to a tool that is not there", "tool_choice")
    try:
        return tools.grammar(called, parallel=use.parallel)
    except SchemaFault:
        for tool in called:
            _check(tool, tools)
        raise


def _check(tool: Tool, tools: CallGrammar) -> None:
    try:
        tools.grammar((tool,), parallel=False)
    except SchemaFault as fault:
        raise InvalidRequest(
            f"calls of the tool {tool_name(tool)!r} cannot be enforced; in its parameters, {fault}", "tools"
        ) from None


def as_lark(grammar: Grammar) -> str:
    """A client's grammar by itself. Raises `InvalidRequest` for a schema that cannot be enforced."""
    return grammar.source if grammar.kind == "lark" else f"start: {embedded(grammar)}"


def embedded(grammar: Grammar) -> str:
    """What a client's grammar is as a part of another. Raises `InvalidRequest`."""
    match grammar.kind:
        case "json_schema":
            return _schema(grammar.source)
        case "regex":
            return regex(grammar.source)
        case "lark":
            return f"%lark {{\n{grammar.source}\n}}"


def _schema(source: str) -> str:
    try:
        return json_value(json.loads(source))
    except SchemaFault as fault:
        raise InvalidRequest(f"the JSON schema cannot be enforced: {fault}", FORMAT_PARAM) from None
    except ValueError as error:
        raise InvalidRequest(f"the JSON schema is no JSON: {error}", FORMAT_PARAM) from None


def _reasoning(tags: ReasoningTags, special_tokens: Mapping[str, int]) -> str:
    """Text never matches a special token; an end that is text itself is the first of its kind."""
    end = literal(tags.end)
    marked = with_special_tokens(end, special_tokens)
    closed = f"reasoned[suffix={end}]: REASONING" if marked == end else f"reasoned: REASONING {marked}"
    start = with_special_tokens(literal(tags.start), special_tokens)
    return "\n".join((f"reasoning_start: {start}", closed, "REASONING: /(?s:.*)/"))
