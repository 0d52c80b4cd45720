"""Reads one answer in Harmony."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from exllamav3_adapters.answer_format.answer_parser import AnswerEvent, CallNumbers, TextLogprobs, without_cut_tag
from exllamav3_adapters.answer_format.harmony_header import (
    ANALYSIS,
    ASSISTANT,
    CHANNEL,
    CONSTRAIN,
    ENDS,
    MESSAGE,
    START,
    TAGS,
    Header,
    HeaderReader,
)
from exllamav3_adapters.answer_format.text_search import find_first, held_length
from exllamav3_adapters.answer_format.tool_format import CallArguments, CallBegun, find_tool
from exllamav3_adapters.contract import Reasoning, Text, TokenLogprob, ToolUse

_Kind = Literal["text", "reasoning", "call", "dropped"]
_LEADS = (ASSISTANT, "to=")
"""What a header begins with where the tag before it is missing, or was in the prompt."""

_FINAL = Header(ASSISTANT, "final", None)


class HarmonyAnswer:
    """An `AnswerParser`.

    The final channel is text, and so is commentary to nobody; what is to a tool is a call, whichever channel it is on
    and whether or not it is JSON. What is to a tool of the model's own (`python`, `browser.*`) is reasoning, unless the
    request has a tool of that name. Messages of other roles, which the model made up, are dropped, and so is a header
    whose message never begins. Text where a header should be, and text behind a header that cannot be read, is text.
    """

    def __init__(
        self, headers: HeaderReader, tool_use: ToolUse | None, *, tells_reasoning: bool, opens_reasoning: bool
    ) -> None:
        self._headers = headers
        reads_calls = tool_use is not None and tool_use.choice != "none"
        self._tools = tool_use.tools if tool_use is not None and reads_calls else None
        self._tells_reasoning = tells_reasoning
        self._numbers = CallNumbers(parallel=tool_use.parallel if tool_use is not None else True)
        self._logprobs = TextLogprobs()
        self._kind: _Kind | None = None  # of the message that is being read; None: none is
        self._header = ""
        self._has_start = False  # a tag of the header was read
        self._held = ""
        self._told: set[_Kind] = set()
        self._separator = ""
        if opens_reasoning:
            self._begin(self._headers.read(ASSISTANT + ANALYSIS.removesuffix(MESSAGE)), [])

    @property
    def num_calls(self) -> int:
        return self._numbers.num_calls

    def feed(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[AnswerEvent]:
        self._logprobs.add(logprobs)
        events: list[AnswerEvent] = []
        text, self._held = self._held + text, ""
        while text:
            at, tag = find_first(text, TAGS)
            if tag is None:
                at -= held_length(text, TAGS)
                self._held = text[at:]
            if at:
                self._read_text(text[:at], events)
            if tag is None:
                break
            self._read_tag(tag, events)
            text = text[at + len(tag) :]
        return self._logprobs.given_to(events, pass_over=self._kind != "text")

    def finish(self, *, cut: bool) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        held = without_cut_tag(self._held, TAGS) if cut else self._held
        if held:
            self._read_text(held, events)
        if not cut:
            self._end(events)
        return self._logprobs.given_to(events, pass_over=self._kind != "text")

    def _read_text(self, text: str, events: list[AnswerEvent]) -> None:
        if self._kind is not None:
            self._tell(text, events)
            return
        self._header += text
        if self._has_start or self._may_be_header():
            return
        prose, self._header = self._header, ""
        self._begin(_FINAL, events)
        self._tell(prose, events)

    def _may_be_header(self) -> bool:
        begun = self._header.lstrip()
        return any(lead.startswith(begun) or begun.startswith(lead) for lead in _LEADS)

    def _read_tag(self, tag: str, events: list[AnswerEvent]) -> None:
        if tag in ENDS:
            self._end(events)
        elif tag == START:
            self._end(events)
            self._has_start = True
        elif tag == MESSAGE and self._kind is None:
            self._begin(self._headers.read(self._with_role()), events)
        elif tag == CHANNEL or (tag == CONSTRAIN and self._kind is None):
            if self._kind is not None:
                self._end(events)
            self._header = self._with_role() + tag
            self._has_start = True

    def _with_role(self) -> str:
        """The header so far. The role of the answer's first message is in the prompt."""
        if self._has_start or self._header.lstrip().startswith(ASSISTANT):
            return self._header.lstrip()
        return ASSISTANT + self._header

    def _begin(self, header: Header | None, events: list[AnswerEvent]) -> None:
        """A message's text follows. None: its header cannot be read."""
        header = header or _FINAL
        self._header, self._has_start = "", False
        self._kind = self._kind_of(header)
        self._separator = "\n\n" if self._kind in self._told else ""
        if self._kind == "call":
            assert header.recipient is not None
            event = self._numbers.event(CallBegun(header.recipient.removeprefix("functions.")))
            events += [event] if event is not None else []

    def _kind_of(self, header: Header) -> _Kind:
        if header.role != ASSISTANT:
            return "dropped"
        to = header.recipient
        if self._tools is not None and to is not None and to not in ("all", ASSISTANT, "user"):
            own = to == "python" or to.partition(".")[0] == "browser"
            if not own or find_tool(self._tools, to) is not None:
                return "call"
            return "reasoning" if self._tells_reasoning else "text"
        return "reasoning" if header.channel == "analysis" and self._tells_reasoning else "text"

    def _tell(self, text: str, events: list[AnswerEvent]) -> None:
        assert self._kind is not None
        if self._kind == "call":
            event = self._numbers.event(CallArguments(text))
            events += [event] if event is not None else []
        elif self._kind != "dropped":
            text, self._separator = self._separator + text, ""
            events.append(Text(text=text) if self._kind == "text" else Reasoning(text=text))
        self._told.add(self._kind)

    def _end(self, events: list[AnswerEvent]) -> None:
        if self._kind == "call":
            events += self._numbers.end()
        self._kind, self._header, self._has_start = None, "", False
