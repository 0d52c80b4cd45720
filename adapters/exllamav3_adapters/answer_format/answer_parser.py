"""The common shape of answers: reasoning between tags, then text, in which sections of tool calls may stand."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.answer_format.text_search import find_first, held_length
from exllamav3_adapters.answer_format.tool_format import CallArguments, CallBegun, CallReader, Piece, Prose, ToolFormat
from exllamav3_adapters.contract import Reasoning, Text, TokenLogprob, ToolCallArguments, ToolCallStart, ToolUse

_State: TypeAlias = Literal["start", "reasoning", "text", "calls"]
AnswerEvent: TypeAlias = Reasoning | Text | ToolCallStart | ToolCallArguments
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class AnswerParser(Protocol):
    """Reads one answer. Not safe for several threads; nothing here waits."""

    def feed(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[AnswerEvent]:
        """What is certain once this piece of the answer is known. Pieces may be cut anywhere."""

    def finish(self, *, cut: bool) -> list[AnswerEvent]:
        """What was held back. `cut`: the answer was ended by its length, not by the model."""

    @property
    def num_calls(self) -> int:
        """Calls that the reader of the answer has been told of."""


class CallNumbers:
    """Gives the calls of one answer their index and id."""

    def __init__(self, *, parallel: bool) -> None:
        self._parallel = parallel
        self._is_told = False
        self._has_arguments = False
        self.num_calls = 0

    def event(self, piece: CallBegun | CallArguments) -> ToolCallStart | ToolCallArguments | None:
        """None: the call is one more than the request allows."""
        if isinstance(piece, CallBegun):
            self._is_told = self._parallel or self.num_calls == 0
            if not self._is_told:
                return None
            self.num_calls += 1
            self._has_arguments = False
            return ToolCallStart(index=self.num_calls - 1, id=f"call_{secrets.token_hex(12)}", name=piece.name)
        if not self._is_told or not piece.text:
            return None
        self._has_arguments = True
        return ToolCallArguments(index=self.num_calls - 1, text=piece.text)

    def end(self) -> list[ToolCallArguments]:
        """The model has ended its turn: a last call to which it gave no arguments has an empty object of them."""
        if self.num_calls == 0 or self._has_arguments:
            return []
        return [ToolCallArguments(index=self.num_calls - 1, text="{}")]


class TextLogprobs:
    """Gives the probabilities of what was read to the last text of it; those of reasoning and calls are dropped."""

    def __init__(self) -> None:
        self._waiting: list[TokenLogprob] = []

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        self._waiting += logprobs

    def given_to(self, events: list[AnswerEvent], *, pass_over: bool) -> list[AnswerEvent]:
        """`pass_over`: what was read last is not text."""
        for at in reversed(range(len(events))):
            event = events[at]
            if isinstance(event, Text):
                events[at] = Text(text=event.text, logprobs=tuple(self._waiting))
                self._waiting.clear()
                return events
        if pass_over:
            self._waiting.clear()
        return events


class TaggedAnswer:
    """An `AnswerParser`.

    Reasoning is looked for at the beginning only. White space between the parts is nobody's: it is dropped before and
    after reasoning, and around calls. What an opening turns out not to begin is given as the text that it is. `frame`:
    tags around the text, which are no part of it. They are dropped, and so are tags of calls outside of a section.
    """

    def __init__(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningTags | None,
        tool_use: ToolUse | None,
        *,
        opens_reasoning: bool,
        frame: Sequence[str] = (),
    ) -> None:
        reads_calls = tool_use is not None and tool_use.choice != "none"
        self._tools = tools if reads_calls else None
        self._tool_use = tool_use
        self._tags = reasoning
        self._frame = tuple(frame)
        if self._tools is not None:
            self._frame += tuple(tag for tag in self._tools.tags if tag not in self._tools.openings)
        self._numbers = CallNumbers(parallel=tool_use.parallel if tool_use is not None else True)
        self._state: _State = "start" if reasoning is not None else "text"
        # Models may write the tag that is in the prompt once more.
        self._without_start: _State = "reasoning" if opens_reasoning else "text"
        self._held = ""
        self._calls: CallReader | None = None
        self._is_trimming = reasoning is not None  # white space at the front of what comes next is dropped
        self._has_text = False
        self._logprobs = TextLogprobs()

    @property
    def num_calls(self) -> int:
        return self._numbers.num_calls

    def feed(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[AnswerEvent]:
        self._logprobs.add(logprobs)
        return self._logprobs.given_to(self._read(text), pass_over=self._is_past_text())

    def finish(self, *, cut: bool) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        held, self._held = self._held, ""
        match self._state:
            case "reasoning":
                events += self._reasoning(held)
            case "calls":
                assert self._calls is not None
                events += self._translated(self._calls.end())
                events += [] if cut else self._numbers.end()
            case "start":
                assert self._tags is not None
                held = without_cut_tag(held, (self._tags.start,)) if cut else held
                events += self._reasoning(held) if self._without_start == "reasoning" else self._text(held)
            case "text":
                tags = (*self._openings(), *self._frame)
                events += self._text(without_cut_tag(held, tags) if cut else held)
        return self._logprobs.given_to(events, pass_over=self._is_past_text())

    def _is_past_text(self) -> bool:
        return self._state in ("reasoning", "calls") or not self._held

    def _read(self, text: str) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        rest: str | None = text
        while rest is not None:
            match self._state:
                case "start":
                    rest = self._read_start(rest)
                case "reasoning":
                    rest = self._read_reasoning(rest, events)
                case "text":
                    rest = self._read_text(rest, events)
                case "calls":
                    rest = self._read_calls(rest, events)
        return events

    # Each of these takes what the state can of the text and returns the rest for the next one; None: all is taken.

    def _read_start(self, text: str) -> str | None:
        assert self._tags is not None
        text = self._held + text
        self._held = ""
        begun = text.lstrip()
        if begun.startswith(self._tags.start):
            self._state = "reasoning"
            return begun.removeprefix(self._tags.start)
        if self._tags.start.startswith(begun):
            self._held = text
            return None
        self._state = self._without_start
        return text

    def _read_reasoning(self, text: str, events: list[AnswerEvent]) -> str | None:
        assert self._tags is not None
        before, tag, after = self._split(text, (self._tags.end,))
        events += self._reasoning(before.rstrip() if tag else before)
        if tag is None:
            return None
        self._state, self._is_trimming = "text", True
        return after

    def _read_text(self, text: str, events: list[AnswerEvent]) -> str | None:
        before, opening, after = self._split(text, (*self._openings(), *self._frame))
        if opening is None or opening in self._frame:
            events += self._text(before)
            return after if opening is not None else None
        events += self._text(before.rstrip())
        assert self._tools is not None
        assert self._tool_use is not None
        self._calls = self._tools.reader(opening, self._tool_use.tools)
        self._state, self._is_trimming = "calls", True
        return after

    def _read_calls(self, text: str, events: list[AnswerEvent]) -> str | None:
        assert self._calls is not None
        events += self._translated(self._calls.read(text))
        if self._calls.rest is None:
            return None
        rest, self._calls = self._calls.rest, None
        self._state = "text"
        return rest

    def _openings(self) -> tuple[str, ...]:
        if self._tools is None:
            return ()
        is_first = not self._has_text and not self.num_calls
        return (*self._tools.openings, *(self._tools.first_openings if is_first else ()))

    def _split(self, text: str, tags: Sequence[str]) -> tuple[str, str | None, str]:
        """What stands before the first of the tags, the tag, and what follows. What may become one, and white space
        before it, is held back."""
        text = self._held + text
        if self._is_trimming:
            text = text.lstrip()
        first_only = self._tools.first_openings if self._tools is not None else ()
        at, tag = find_first(text, tags, at_front_only=first_only)
        if tag is not None:
            self._held = ""
            return text[:at], tag, text[at + len(tag) :]
        keep = len(text[: len(text) - held_length(text, tags)].rstrip()) if tags else len(text)
        self._held = text[keep:]
        return text[:keep], None, ""

    def _reasoning(self, text: str) -> list[AnswerEvent]:
        if not text:
            return []
        self._is_trimming = False
        return [Reasoning(text=text)]

    def _text(self, text: str) -> list[AnswerEvent]:
        if self._is_trimming:
            text = text.lstrip()
        if not text:
            return []
        self._is_trimming = False
        self._has_text = True
        return [Text(text=text)]

    def _translated(self, pieces: Sequence[Piece]) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        for piece in pieces:
            if isinstance(piece, Prose):
                events += self._text(piece.text)
            else:
                self._is_trimming = True
                if (event := self._numbers.event(piece)) is not None:
                    events.append(event)
        return events


def without_cut_tag(held: str, tags: Sequence[str]) -> str:
    """Text that the answer's limit has cut in the middle of a tag, unless a single sign is all there is of it."""
    cut = held_length(held, tags)
    return held[: len(held) - cut] if cut > 1 else held
