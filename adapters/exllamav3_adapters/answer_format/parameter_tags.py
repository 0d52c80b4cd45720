"""Forms of calls whose parameters stand one by one between tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from exllamav3_adapters.answer_format.free_text import text_rules
from exllamav3_adapters.answer_format.lark import json_value, literal
from exllamav3_adapters.answer_format.parameter_schema import ParameterSchema
from exllamav3_adapters.answer_format.schema_choices import Choice, FixedChoice, JsonChoice, TextChoice, choices
from exllamav3_adapters.answer_format.tagged_calls import CallTags, TaggedCalls
from exllamav3_adapters.answer_format.tool_format import CallReader, tool_name
from exllamav3_adapters.contract import Tool


@dataclass(frozen=True, kw_only=True)
class ParameterTags:
    """A `ToolFormat`. Besides the tags it has the white space that the template writes behind them."""

    name: str
    words: CallTags
    one_section: bool = False
    """All calls stand in one section; otherwise each has its own."""
    after_key: str = ""
    types_strings: bool = False
    """A parameter's tag says whether the value is a string."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.words.section, self.words.call) if self.words.section is not None else (self.words.call,)

    @property
    def first_openings(self) -> tuple[str, ...]:
        return ()

    @property
    def tags(self) -> tuple[str, ...]:
        return self.words.all

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        return TaggedCalls(self.words, opening, tools)

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        words = self.words
        begin, end = (f"{words.section}\n", f"\n{words.section_end}") if words.section is not None else ("", "")
        calls = f"call_any ({_NEW_LINE} call_any)*" if parallel else "call_any"
        if self.one_section:
            # The line break is a literal of its own: a lexer would take it for the beginning of a longer one.
            calls = f"{literal(begin)} {calls} {_NEW_LINE} {literal(words.section_end)}"
            begin = end = ""
        rules = [f"calls: {calls}", f"call_any: {' | '.join(f'call_{number}' for number in range(len(tools)))}"]
        for number, tool in enumerate(tools):
            rules += self._call_rules(f"call_{number}", tool, begin, end)
        return "\n".join((*rules, *text_rules("call_text", {}, words.value_end, before=self._around)))

    @property
    def _around(self) -> str:
        return "\n" if self.words.in_lines else ""

    def _call_rules(self, rule: str, tool: Tool, begin: str, end: str) -> list[str]:
        parameters = ParameterSchema(tool)
        words = self.words
        parts = [literal(f"{begin}{words.call}{tool_name(tool)}{words.name_end.removesuffix(chr(10))}\n")]
        rules: list[str] = []
        for number, name in enumerate(parameters.names):
            argument = f"{rule}_{number}"
            parts.append(argument if name in parameters.required else f"{argument}?")
            rules += self._argument_rules(argument, name, parameters)
        if not rules:
            parts.append(f"{_NEW_LINE}?")  # DeepSeek's template leaves a line for no parameters
        parts.append(literal(f"{words.call_end}{end}"))
        return [f"{rule}: {' '.join(parts)}", *rules]

    def _argument_rules(self, rule: str, name: str, parameters: ParameterSchema) -> list[str]:
        found = list(choices(parameters, parameters.of(name)))
        options: list[str] = []
        rules: list[str] = []
        for number, choice in enumerate(found):
            is_string = isinstance(choice, TextChoice) or (
                isinstance(choice, FixedChoice) and isinstance(choice.value, str)
            )
            value = f"{rule}_{number}"
            if isinstance(choice, TextChoice) and choice.is_free:
                value = "call_text"
            elif isinstance(choice, TextChoice):
                rules += text_rules(value, choice.schema, self.words.value_end, before=self._around)
            else:
                value = self._written(choice)
            options.append(f"{literal(self._before_value(name, is_string))} {value} {_NEW_LINE}")
        return [f"{rule}: {' | '.join(options)}", *rules]

    def _before_value(self, name: str, is_string: bool) -> str:
        attribute = f' string="{json.dumps(is_string)}"' if self.types_strings else ""
        words = self.words
        return f"{words.key}{name}{words.key_end}{self.after_key}{attribute}{words.value}{self._around}"

    def _written(self, choice: Choice) -> str:
        end = f"{self._around}{self.words.value_end}"
        if isinstance(choice, JsonChoice):
            return f"{json_value(choice.schema)} {literal(end)}"
        assert isinstance(choice, FixedChoice)
        text = choice.value if isinstance(choice.value, str) else json.dumps(choice.value, ensure_ascii=False)
        return literal(text + end)


_NEW_LINE = literal("\n")
