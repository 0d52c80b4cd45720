"""What a Harmony message says of itself before its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
MESSAGE: Final = "<|message|>"
END: Final = "<|end|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
TAGS: Final = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
ENDS: Final = (END, CALL, RETURN)
ASSISTANT: Final = "assistant"
ANALYSIS: Final = f"{CHANNEL}analysis{MESSAGE}"
"""Begins reasoning, behind the role."""


@dataclass(frozen=True, slots=True)
class Header:
    role: str
    channel: str | None
    recipient: str | None


class HeaderReader:
    """Reads headers with OpenAI's parser."""

    def __init__(self, encoding: HarmonyEncoding) -> None:
        self._encoding = encoding

    def read(self, text: str) -> Header | None:
        """`text` stands between the tags of the start and of the message. None: it is no header."""
        from openai_harmony import HarmonyError, StreamableParser

        if not text.startswith(ASSISTANT) and (not text.strip() or text.lstrip().startswith((CHANNEL, CONSTRAIN))):
            text = ASSISTANT + text  # a role left out
        parser = StreamableParser(self._encoding, None)
        try:
            for token in self._encoding.encode(f"{START}{text}{MESSAGE}", allowed_special="all"):
                parser.process(token)
        except HarmonyError:
            return None
        role, recipient = parser.current_role, parser.current_recipient
        if role is None:
            return None
        if recipient and f"to={recipient}" not in text:
            recipient = None  # a second word of the channel
        # A second tag of a kind is left in the value before it.
        recipient = recipient.partition("<|")[0].strip() if recipient else None
        return Header(role=role.value, channel=parser.current_channel, recipient=recipient or None)
