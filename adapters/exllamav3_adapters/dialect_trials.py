"""Finds out what a template takes by rendering small chats and looking for their words in the result."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any, TypeAlias

from exllamav3_adapters.template_dialect import Dialect
from exllamav3_adapters.template_sandbox import CompiledTemplate, TemplateFault, TemplateRefused

_SYSTEM, _SYSTEM_2, _USER, _USER_2, _ANSWER = "probesystem", "probesecond", "probeuser", "otheruser", "probeanswer"
_CALL, _KEY, _VALUE, _RESULT, _TOOL = "probe_call", "probe_key", "probe value", "proberesult", "probe_tool"
_LONG_ID, _SHORT_ID = "call_0123456789abcdefghij", "probe0001"
_NO_JSON = "probe no json"
_NOW = datetime(2000, 1, 1)
_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "An x."}}},
        },
    },
)
_Messages: TypeAlias = Sequence[Mapping[str, Any]]
_Tools: TypeAlias = Sequence[Mapping[str, Any]] | None


def find_dialect(template: CompiledTemplate, special_tokens: Mapping[str, str]) -> Dialect:
    """What `template` takes. Costs some 30 renderings of a few words, a few milliseconds each at most."""
    return _Trials(template, special_tokens).dialect()


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


class _Trials:
    def __init__(self, template: CompiledTemplate, special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = special_tokens
        self._lead: list[dict[str, Any]] = []
        self._tools: _Tools = None

    def dialect(self) -> Dialect:
        empty_tools = (
            self._text([_message("user", _USER)]) is None and self._text([_message("user", _USER)], ()) is not None
        )
        self._tools = () if empty_tools else None
        system_role = self._shows([_message("system", _SYSTEM), _message("user", _USER)], _SYSTEM)
        self._lead = [_message("system", _SYSTEM)] if system_role else []
        tools = self._shows([*self._lead, _message("user", _USER)], _TOOL, tools=_TOOLS)
        self._tools = _TOOLS if tools else self._tools
        found = replace(self._tool_history(), system_role=system_role, tools=tools, empty_tools=empty_tools)
        return replace(
            found,
            several_systems=system_role and self._several_systems(),
            later_systems=system_role and self._later_systems(),
            developer_role=self._developer_role(),
            part_roles=frozenset(
                role for role in ("system", "user", "assistant", "tool") if self._takes_parts(role, found)
            ),
            repeated_turns=self._repeated_turns(),
            user_after_result=not found.tool_history or self._user_after_result(found),
            moving_head=self._moving_head(),
        )

    def _text(self, messages: _Messages, tools: _Tools = None) -> str | None:
        """The rendering; None where the template refuses the chat or fails on it."""
        try:
            return self._template.render(
                messages, self._tools if tools is None else tools, self._special_tokens, now=_NOW
            ).text
        except (TemplateRefused, TemplateFault):
            return None

    def _shows(self, messages: _Messages, *words: str, tools: _Tools = None) -> bool:
        text = self._text(messages, tools)
        return text is not None and all(word in text for word in words)

    def _several_systems(self) -> bool:
        messages = [_message("system", _SYSTEM), _message("system", _SYSTEM_2), _message("user", _USER)]
        return self._shows(messages, _SYSTEM, _SYSTEM_2, _USER)

    def _later_systems(self) -> bool:
        """Some templates refuse or drop them, others move them to the front, where they change the head."""
        before = [*self._lead, _message("user", _USER), _message("assistant", _ANSWER)]
        without = self._text([*before, _message("user", _USER_2)])
        text = self._text([*before, _message("system", _SYSTEM_2), _message("user", _USER_2)])
        if without is None or text is None or _SYSTEM_2 not in text:
            return False
        return _ANSWER in os.path.commonprefix([text, without])  # noqa: RUF071 - of characters

    def _repeated_turns(self) -> bool:
        answers = [_message("assistant", _ANSWER), _message("assistant", _RESULT)]
        messages = [_message("user", _USER), _message("user", _USER_2), *answers, _message("user", _USER)]
        return self._shows([*self._lead, *messages], _USER, _USER_2, _ANSWER, _RESULT)

    def _user_after_result(self, dialect: Dialect) -> bool:
        """Claude Code sends the user's words in one message with the results."""
        result = {**_message("tool", _RESULT), "tool_call_id": _call_id(dialect), "name": _CALL}
        messages = [*self._lead, _message("user", _USER), _call_message(dialect), result, _message("user", _USER_2)]
        return self._shows(messages, _CALL, _RESULT, _USER_2)

    def _developer_role(self) -> bool:
        # A template that prints any role's name also prints this one, which its model has never seen.
        named = re.search(r"""(["'])developer\1""", self._template.source) is not None
        return named and self._shows([_message("developer", _SYSTEM), _message("user", _USER)], _SYSTEM, _USER)

    def _takes_parts(self, role: str, dialect: Dialect) -> bool:
        """Whether two parts render as one text that joins them."""
        chats = {
            "system": ([], [_message("user", _USER)]),
            "user": (self._lead, []),
            "assistant": ([*self._lead, _message("user", _USER)], [_message("user", _USER_2)]),
            "tool": ([*self._lead, _message("user", _USER), _call_message(dialect)], []),
        }
        if (role == "system" and not dialect.system_role) or (role == "tool" and not dialect.tool_history):
            return False
        before, after = chats[role]
        extra = {"tool_call_id": _call_id(dialect), "name": _CALL} if role == "tool" else {}

        def render(content: Any) -> str | None:
            return self._text([*before, {**_message(role, content), **extra}, *after])

        parts = render([{"type": "text", "text": "probeone"}, {"type": "text", "text": "probetwo"}])
        return parts is not None and parts in {render(f"probeone{glue}probetwo") for glue in ("", " ", "\n", "\n\n")}

    def _tool_history(self) -> Dialect:
        """The fields of `Dialect` that say how tool calls and their results are taken; the others at their defaults."""
        for short, objects, null in product((False, True), (True, False), (False, True)):
            found = Dialect(tool_history=True, short_call_ids=short, object_arguments=objects, null_content=null)
            text = self._call_text(found)
            if text is not None and _has_whole_call(text):
                return replace(
                    found,
                    null_content=null or self._prefers_null(found, text),
                    text_arguments=_NO_JSON in (self._call_text(found, _NO_JSON) or ""),
                )
        return Dialect()

    def _prefers_null(self, dialect: Dialect, text_with_empty: str) -> bool:
        """Some templates write an empty turn for an empty string, others the word None for a null."""
        text = self._call_text(replace(dialect, null_content=True))
        return text is not None and len(text) < len(text_with_empty)

    def _call_text(self, dialect: Dialect, arguments: str | None = None) -> str | None:
        result = {**_message("tool", _RESULT), "tool_call_id": _call_id(dialect), "name": _CALL}
        messages = [*self._lead, _message("user", _USER), _call_message(dialect, arguments), result]
        return self._text(messages)

    def _moving_head(self) -> bool:
        opening = [self._text([*self._lead, _message("user", word)]) for word in (_USER, _USER_2)]
        later = self._text(
            [*self._lead, _message("user", _USER), _message("assistant", _ANSWER), _message("user", _USER_2)]
        )
        texts = [text for text in opening if text is not None]
        return later is not None and not later.startswith(os.path.commonprefix(texts))  # noqa: RUF071 - of characters


def _has_whole_call(text: str) -> bool:
    if not all(word in text for word in (_CALL, _KEY, _VALUE, _RESULT)):
        return False
    # Python's quotes mean that an object was printed; escaped ones, that JSON was put into JSON.
    return f"'{_KEY}'" not in text and f'\\"{_KEY}' not in text


def _call_id(dialect: Dialect) -> str:
    return _SHORT_ID if dialect.short_call_ids else _LONG_ID


def _call_message(dialect: Dialect, arguments: str | None = None) -> dict[str, Any]:
    given: Any = arguments
    if given is None:
        given = {_KEY: _VALUE} if dialect.object_arguments else f'{{"{_KEY}": "{_VALUE}"}}'
    call = {"id": _call_id(dialect), "type": "function", "function": {"name": _CALL, "arguments": given}}
    return {"role": "assistant", "content": None if dialect.null_content else "", "tool_calls": [call]}
