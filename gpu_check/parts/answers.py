"""What an answer is held to: grammars, tool calls, a budget of reasoning. The model itself would write anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

from exllamav3_adapters.contract import (
    Chat,
    ChatAnswer,
    Engine,
    GenerationParams,
    Grammar,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    ToolUse,
)
from gpu_check.check import Check, Figures, expect
from gpu_check.requests import read

_SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "dark": {"type": "boolean"}},
    "required": ["color", "dark"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "paint", "description": "Paints it.", "parameters": _SCHEMA}}
_ASK = {"role": "user", "content": "Paint the wall."}
_REASONING_BUDGET = 8
_THINKING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)


async def check_answers(check: Check) -> Figures:
    """A JSON schema, a regular expression, a tool that must be called, reasoning that ends at its budget."""
    async with check.loaded(check.settings("llama")) as engine:
        check.say("grammars")
        written = json.loads(await _held(engine, Grammar(kind="json_schema", source=json.dumps(_SCHEMA))))
        expect(written["color"] in ("red", "blue") and isinstance(written["dark"], bool), f"the schema gave {written}")
        digits = await _held(engine, Grammar(kind="regex", source="[0-9]{4}-[0-9]{2}"))
        expect(re.fullmatch("[0-9]{4}-[0-9]{2}", digits) is not None, f"the expression gave {digits!r}")
        check.say("a tool call")
        name, arguments = await _call(engine)
        expect(name == "paint" and set(json.loads(arguments)) == {"color", "dark"}, f"called {name} with {arguments}")
    template = check.state / "thinking.jinja"
    template.write_text(_THINKING_TEMPLATE)
    check.say("a reasoning budget")
    thoughts, text = await _think(check, template)
    expect(bool(thoughts) and bool(text), f"reasoning {thoughts!r} and text {text!r} after a budget")
    return {"json": written, "regex": digits, "tool": name, "arguments": arguments, "reasoning": thoughts}


async def _held(engine: Engine, grammar: Grammar) -> str:
    prompt = await engine.render(Chat(messages=[_ASK]))
    answer = await read(engine.generate(prompt, GenerationParams(temperature=0.0, max_tokens=200, grammar=grammar)))
    expect(answer.reason == "stop", f"{grammar.kind} ended by {answer.reason}: {answer.text!r}")
    return answer.text


async def _call(engine: Engine) -> tuple[str, str]:
    prompt = await engine.render(Chat(messages=[_ASK], tools=[_TOOL]))
    use = ToolUse(tools=[_TOOL], choice="required", parallel=False)
    params = GenerationParams(temperature=0.0, max_tokens=300, chat=ChatAnswer(tool_use=use, reasoning=False))
    name = arguments = ""
    async for event in engine.generate(prompt, params):
        if isinstance(event, ToolCallStart):
            name = event.name
        elif isinstance(event, ToolCallArguments):
            arguments += event.text
    return name, arguments


async def _think(check: Check, template: Path) -> tuple[str, str]:
    settings = check.settings(
        "llama",
        chat_template=str(template),
        reasoning="on",
        reasoning_start_token="<think>",
        reasoning_end_token="</think>",
    )
    thoughts = text = ""
    async with check.loaded(settings) as engine:
        prompt = await engine.render(Chat(messages=[_ASK]))
        chat = ChatAnswer(reasoning_budget=_REASONING_BUDGET)
        params = GenerationParams(temperature=0.0, max_tokens=40, ignore_eos=True, chat=chat)
        async for event in engine.generate(prompt, params):
            if isinstance(event, Reasoning):
                thoughts += event.text
            elif isinstance(event, Text):
                text += event.text
    return thoughts, text
