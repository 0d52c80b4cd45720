"""Calls with named arguments whose values say by their writing what they are: Gemma 4, and Python's calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exllamav3_adapters.answer_format.argument_value import as_json
from exllamav3_adapters.answer_format.arguments_object import ArgumentsObject, in_quotes, json_text
from exllamav3_adapters.answer_format.literal_end import LiteralEnd
from exllamav3_adapters.answer_format.parameter_schema import STRING, ParameterSchema
from exllamav3_adapters.answer_format.quoted_text import QuotedText
from exllamav3_adapters.answer_format.text_search import find_first, held_length
from exllamav3_adapters.answer_format.tool_format import CallArguments, CallBegun, Piece, Prose, find_tool
from exllamav3_adapters.contract import Tool

_MAX_NAME_LENGTH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class CallWords:
    """How one family writes a section of calls."""

    opening: str
    close: str
    call: str
    """Precedes the name."""
    name_end: str
    key: re.Pattern[str]
    """An argument's name and what stands behind it; the group that matches is the name."""
    begun_key: re.Pattern[str]
    """What may go on to become one."""
    call_end: str
    between: str
    """Signs that stand around calls and mean nothing."""
    quotes: Mapping[str, bool]
    """As in `LiteralEnd`."""
    as_json: Callable[[str], str | None]
    """A value that is no string, from the form's writing. None: it is nothing of the form's."""
    more_tags: tuple[str, ...] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        """All that are no part of prose."""
        return (self.opening, self.close, *self.more_tags)


class LiteralCalls:
    """A `CallReader`.

    Strings are passed on as they come, other values once they are whole. A value without a name gets the one that its
    place has in the tool's schema. The end of the section ends whatever is open. What is no call is prose.
    """

    def __init__(self, words: CallWords, tools: Sequence[Tool]) -> None:
        self._words = words
        self._tools = tools
        self._text = ""  # not read yet
        self._step: Callable[[list[Piece]], bool] = self._between_calls
        self._schema = ParameterSchema(None)
        self._arguments = ArgumentsObject()
        self._num_arguments = 0
        self._key = ""
        self._string = QuotedText("", words.close, escapes=False)
        self._literal = LiteralEnd(words.quotes, words.close)
        self._streams = False
        self._held: list[str] = []  # of a value that waits for its end
        self.rest: str | None = None

    def read(self, text: str) -> list[Piece]:
        self._text += text
        pieces: list[Piece] = []
        while self.rest is None and self._step(pieces):
            pass
        return pieces

    def end(self) -> list[Piece]:
        # What waits for its end is not there. Prose is held for what may be the end, and a single sign is not taken
        # for a part of it.
        is_prose = self._step == self._prose and len(self._text.strip()) == 1
        return [Prose(self._text.rstrip())] if is_prose else []

    # Each step takes what it can from the front of the text. False: it needs more.

    def _between_calls(self, pieces: list[Piece]) -> bool:
        words = self._words
        self._text = self._text.lstrip(words.between)
        if self._text.startswith(words.close):
            self.rest, self._text = self._text.removeprefix(words.close), ""
            return True
        if self._text.startswith(words.opening):
            self._text = self._text.removeprefix(words.opening)
            return True
        if any(word.startswith(self._text) for word in (words.close, words.opening, words.call)):
            return False
        if not self._text.startswith(words.call):
            self._step = self._prose
            return True
        return self._take_name(pieces)

    def _take_name(self, pieces: list[Piece]) -> bool:
        words = self._words
        text = self._text.removeprefix(words.call)
        at, stop = find_first(text, (words.name_end, "\n", "<", '"'))
        if stop is None and at <= _MAX_NAME_LENGTH:
            return False
        name = text[:at].strip()
        if stop != words.name_end or not 0 < len(name) <= _MAX_NAME_LENGTH or any(map(str.isspace, name)):
            self._text = text
            self._step = self._prose
            return True
        self._text = text[at + len(words.name_end) :]
        self._schema = ParameterSchema(find_tool(self._tools, name))
        self._arguments = ArgumentsObject()
        self._num_arguments = 0
        pieces += [CallBegun(name), CallArguments(self._arguments.open())]
        self._step = self._between_arguments
        return True

    def _prose(self, pieces: list[Piece]) -> bool:
        """Up to the section's end."""
        tags = self._words.tags
        at, tag = find_first(self._text, tags)
        if tag is None:
            at -= held_length(self._text, tags)
        prose = self._text[:at].rstrip()
        if prose:
            pieces.append(Prose(prose))
        self._text = self._text[at + len(tag) :] if tag is not None else self._text[len(prose) :]
        if tag == self._words.opening:
            self._step = self._between_calls
        if tag == self._words.close:
            self.rest, self._text = self._text, ""
        return tag is not None

    def _between_arguments(self, pieces: list[Piece]) -> bool:
        words = self._words
        self._text = self._text.lstrip(" \t\r\n,")
        is_over = self._text.startswith(words.close)
        if is_over or self._text.startswith(words.call_end):
            self._text = self._text if is_over else self._text.removeprefix(words.call_end)
            pieces.append(CallArguments(self._arguments.close()))
            self._step = self._between_calls
            return True
        if words.close.startswith(self._text):
            return False
        return self._take_key()

    def _take_key(self) -> bool:
        """The name of an argument, or the place of a value without one."""
        key = self._words.key.match(self._text)
        if key is None and self._words.begun_key.fullmatch(self._text):
            return False
        names = list(self._schema.properties)
        place, self._num_arguments = self._num_arguments, self._num_arguments + 1
        if key is not None:
            self._key = next(filter(None, key.groups()))
            self._text = self._text[key.end() :]
        else:
            self._key = names[place] if place < len(names) else f"argument_{place}"
        self._arguments.begin(self._key)
        self._step = self._begin_value
        return True

    def _begin_value(self, pieces: list[Piece]) -> bool:
        words = self._words
        self._text = self._text.lstrip()
        if any(len(quote) > len(self._text) and quote.startswith(self._text) for quote in words.quotes):
            return False
        quote = next(filter(self._text.startswith, words.quotes), None)
        self._held = []
        if quote is None:
            self._literal = LiteralEnd(words.quotes, words.close)
            self._step = self._take_literal
            return True
        self._text = self._text.removeprefix(quote)
        self._string = QuotedText(quote, words.close, escapes=words.quotes[quote])
        types = self._schema.types(self._key)
        self._streams = types is None or types >= STRING
        if self._streams:
            self._add('"', pieces)
        self._step = self._take_string
        return True

    def _take_string(self, pieces: list[Piece]) -> bool:
        taken, said = self._string.take(self._text)
        self._text = self._text[taken:]
        if self._streams:
            self._add(in_quotes(said), pieces)
        else:
            self._held.append(said)
        if not self._string.is_complete:
            return False
        self._add('"' if self._streams else as_json("".join(self._held), self._schema.types(self._key)), pieces)
        self._step = self._after_value
        return True

    def _take_literal(self, pieces: list[Piece]) -> bool:
        taken = self._literal.take(self._text)
        self._held.append(self._text[:taken])
        self._text = self._text[taken:]
        if not self._literal.is_complete:
            return False
        text = "".join(self._held).strip()
        json = self._words.as_json(text) if self._schema.types(self._key) != STRING else None
        self._add(json if json is not None else json_text(text), pieces)
        self._step = self._after_value
        return True

    def _after_value(self, pieces: list[Piece]) -> bool:
        """Drops what stands between a value and the next comma."""
        stops = (",", self._words.call_end, self._words.close)
        at, stop = find_first(self._text, stops)
        if stop is None:
            at -= held_length(self._text, stops)
        self._text = self._text[at:]
        self._step = self._between_arguments if stop is not None else self._step
        return stop is not None

    def _add(self, json: str, pieces: list[Piece]) -> None:
        if added := self._arguments.add(json):
            pieces.append(CallArguments(added))
