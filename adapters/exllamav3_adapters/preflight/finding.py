"""One thing that is wrong with a setup, or worth knowing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """An `error` fails the load, a `warning` is probably not meant, a `note` is told and no more."""

    severity: Severity = "error"
    subject: str
    """The option at fault, such as `model.cache_size`; or what of the machine is."""
    fault: str
    """What is wrong, for the middle of a sentence."""
    remedy: str
    """What to do about it, in the imperative. Empty where the fault says it."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.fault}" + (f"; {self.remedy}" if self.remedy else "")


def finding_of(message: str, subject: str, remedy: str) -> Finding:
    """Of an engine's own message, `option: fault; remedy`. The arguments stand in for what it does not name."""
    option, colon, rest = message.partition(": ")
    if not colon or " " in option:
        option, rest = subject, message
    fault, semicolon, last = rest.rpartition("; ")
    return Finding(subject=option, fault=fault if semicolon else last, remedy=last if semicolon else remedy)
