"""Calls whose parameters stand one by one between tags, values without quotes: Qwen3-Coder, MiniMax, GLM and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exllamav3_adapters.answer_format.argument_value import TextArgument
from exllamav3_adapters.answer_format.arguments_object import ArgumentsObject
from exllamav3_adapters.answer_format.json_in_text import JsonInText
from exllamav3_adapters.answer_format.parameter_schema import STRING, ParameterSchema
from exllamav3_adapters.answer_format.text_search import find_first, held_length
from exllamav3_adapters.answer_format.tool_format import CallArguments, CallBegun, Piece, Prose, find_tool
from exllamav3_adapters.contract import Tool

_MAX_NAME_LENGTH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTags:
    """The words of one family. Some end with an attribute's quote; `>` is then what ends the tag."""

    section: str | None
    """Opens a section of calls. None: each call is a section."""
    section_end: str
    call: str
    """Precedes the name."""
    name_end: str
    call_end: str
    key: str
    """Precedes a parameter's name."""
    key_end: str
    value: str
    """Stands before the value, whatever attributes come between; empty where `key_end` does."""
    value_end: str
    part: str | None = None
    """Of the other words; tokenizers have it as a token."""
    in_lines: bool = False
    """A line break before and after a value is the template's."""

    @property
    def all(self) -> tuple[str, ...]:
        """All that stand between the texts of a call, and must not be taken for one."""
        value = self.value if len(self.value) > 1 else None
        words = (self.section, self.section_end, self.call, self.call_end, self.key, value, self.value_end, self.part)
        return tuple(word for word in words if word is not None)


class TaggedCalls:
    """A `CallReader`. A value ends with the first `value_end`; a list or an object, with the first outside of its
    strings.

    What stands between calls is prose, without its tags; what stands between parameters is dropped. A call that is
    not closed ends with its section, or where the next one begins. Without a section's opening, the section ends with
    the calls.
    """

    def __init__(self, tags: CallTags, opening: str, tools: Sequence[Tool]) -> None:
        self._tags = tags
        self._tools = tools
        self._is_wrapped = opening == tags.section
        self._text = ""  # not read yet
        self._step: Callable[[list[Piece]], bool] = self._between_calls if self._is_wrapped else self._name
        self._schema = ParameterSchema(None)
        self._arguments = ArgumentsObject()
        self._key = ""
        self._value = TextArgument(None, in_lines=False)
        self._is_json = False
        self._json = JsonInText(tags.value_end)
        self.rest: str | None = None

    def read(self, text: str) -> list[Piece]:
        self._text += text
        pieces: list[Piece] = []
        while self.rest is None and self._step(pieces):
            pass
        return pieces

    def end(self) -> list[Piece]:
        # A name, a key or a value that waits for its end is not there. Prose is held only for what may be a tag, and
        # a single sign is taken for none.
        is_prose = self._is_wrapped and self._step == self._between_calls and len(self._text.strip()) == 1
        return [Prose(self._text.rstrip())] if is_prose else []

    # Each step takes what it can from the front of the text. False: it needs more.

    def _between_calls(self, pieces: list[Piece]) -> bool:
        if not self._is_wrapped and (follows := self._follows()) is not True:
            return follows is False and self._over()
        tag = self._take_prose(pieces)
        if tag == self._tags.call:
            self._step = self._name
        elif tag == self._tags.section_end:
            return self._over()
        return tag is not None

    def _follows(self) -> bool | None:
        """Whether a call, or an end of a section, comes next. None: not known yet."""
        begun = self._text.lstrip()
        tags = (self._tags.call, self._tags.section_end)
        if begun.startswith(tags):
            return True
        return None if any(tag.startswith(begun) for tag in tags) else False

    def _take_prose(self, pieces: list[Piece]) -> str | None:
        """Up to a tag, which is returned. White space before what is no prose yet is held back."""
        at, tag = find_first(self._text, self._tags.all)
        if tag is None:
            at -= held_length(self._text, self._tags.all)
        prose = self._text[:at].rstrip()
        if prose:
            pieces.append(Prose(prose))
        self._text = self._text[at + len(tag) :] if tag is not None else self._text[len(prose) :]
        return tag

    def _name(self, pieces: list[Piece]) -> bool:
        end = self._tags.name_end
        self._text = self._text.lstrip()
        at, stop = find_first(self._text, (end, "\n", "<"))
        if stop is None and at <= _MAX_NAME_LENGTH:
            return False
        # Where a line break ends a name, so does the tag that follows it.
        is_closed = stop == end or (end == "\n" and stop == "<")
        name = self._text[:at].strip()
        after = self._text[at:].removeprefix(end)
        if is_closed and _is_name(name):
            self._text = after
            self._begin(name, pieces)
            return True
        # From here to the section's end, or else the answer's, prose and calls alternate.
        if is_closed and end != "\n":
            self._text = name + after
        self._is_wrapped = True
        self._step = self._between_calls
        return True

    def _begin(self, name: str, pieces: list[Piece]) -> None:
        self._schema = ParameterSchema(find_tool(self._tools, name))
        self._arguments = ArgumentsObject()
        pieces += [CallBegun(name), CallArguments(self._arguments.open())]
        self._step = self._between_parameters

    def _between_parameters(self, pieces: list[Piece]) -> bool:
        tags = self._tags
        tag = self._skip_to((tags.key, tags.call_end, tags.section_end, tags.call))
        if tag is None:
            return False
        if tag == tags.key:
            self._step = self._take_key
            return True
        pieces.append(CallArguments(self._arguments.close()))
        self._step = self._name if tag == tags.call else self._between_calls
        return self._over() if tag == tags.section_end else True

    def _take_key(self, pieces: list[Piece]) -> bool:
        at, end = find_first(self._text, (self._tags.key_end,))
        if end is None:
            return False
        self._key, self._text = self._text[:at].strip(), self._text[at + len(end) :]
        self._step = self._take_attributes
        return True

    def _take_attributes(self, pieces: list[Piece]) -> bool:
        at = self._text.find(self._tags.value)
        if at < 0:
            return False
        attributes, self._text = self._text[:at], self._text[at + len(self._tags.value) :]
        # DeepSeek says whether a value is a string.
        types = STRING if 'string="true"' in attributes else self._schema.types(self._key)
        if types == STRING and 'string="false"' in attributes:
            types = None
        self._value = TextArgument(types, in_lines=self._tags.in_lines)
        self._is_json = types is None or not types.isdisjoint(("array", "object"))
        self._arguments.begin(self._key)
        self._step = self._begin_value
        return True

    def _begin_value(self, pieces: list[Piece]) -> bool:
        self._step = self._take_value
        if self._is_json:
            begun = self._text.lstrip()
            if begun.startswith(("[", "{")):
                self._json = JsonInText(self._tags.value_end)
                self._step = self._take_json
            elif not begun:
                self._step = self._begin_value
                return False
        return True

    def _take_json(self, pieces: list[Piece]) -> bool:
        at = self._json.find(self._text)
        if at is None:
            return False
        value, self._text = self._text[:at], self._text[at + len(self._tags.value_end) :]
        self._add(self._value.read(value), pieces)
        self._end_value(pieces)
        return True

    def _take_value(self, pieces: list[Piece]) -> bool:
        at, end = find_first(self._text, (self._tags.value_end,))
        if end is None:
            at -= held_length(self._text, (self._tags.value_end,))
        value, self._text = self._text[:at], self._text[at + len(end or "") :]
        self._add(self._value.read(value), pieces)
        if end is None:
            return False
        self._end_value(pieces)
        return True

    def _end_value(self, pieces: list[Piece]) -> None:
        self._add(self._value.end(), pieces)
        self._step = self._between_parameters

    def _add(self, json: str, pieces: list[Piece]) -> None:
        if added := self._arguments.add(json):
            pieces.append(CallArguments(added))

    def _skip_to(self, tags: Sequence[str]) -> str | None:
        at, tag = find_first(self._text, tags)
        if tag is None:
            at -= held_length(self._text, tags)
        self._text = self._text[at + len(tag or "") :]
        return tag

    def _over(self) -> bool:
        self.rest, self._text = self._text, ""
        return True


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME_LENGTH and not any(char.isspace() or char in "<>{}\"'" for char in text)
