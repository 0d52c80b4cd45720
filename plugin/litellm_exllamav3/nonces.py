"""Lines of a system prompt that change with each request and mean nothing to the model.

One such line near the beginning of a prompt costs its user every cache hit, so known ones are dropped: for the hash
of a head, and for good before a chat is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from litellm_exllamav3.head import HEAD_ROLES

DEFAULT_NONCES: tuple[str, ...] = (r"x-anthropic-billing-header:.*",)
"""Claude Code's `x-anthropic-billing-header: cc_version=...; cc_entrypoint=...; cch=...;`."""

MAX_LINES = 16
"""Only so many first lines of each text are looked at: an expression over a whole head of 120 kB takes 1 ms."""
MAX_CHARS = 4096
"""And only so many first characters. A line that is longer is no nonce."""


class NonceRules:
    """Compiled rules. Each is a regular expression that matches a whole line. Immutable, safe on any thread."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises ValueError, which names the pattern, where one is not a regular expression."""
        matches = []
        for pattern in patterns:
            try:
                matches.append(re.compile(pattern).fullmatch)
            except re.error as error:
                raise ValueError(f"nonces: {pattern!r} is not a regular expression: {error}") from error
        self._matches = tuple(matches)

    def strip_text(self, text: str) -> str:
        """The text without its nonce lines; the same object where it has none."""
        if not self._matches:
            return text
        kept: list[str] = []
        start = copied = 0
        for _ in range(MAX_LINES):
            end = text.find("\n", start, MAX_CHARS)
            if end < 0:
                if len(text) > MAX_CHARS:
                    break
                end = len(text)
            line = text[start:end].rstrip()
            if line and any(match(line) for match in self._matches):
                if start > copied:
                    kept.append(text[copied:start])
                copied = end + 1
            start = end + 1
            if start >= len(text):
                break
        if not copied:
            return text
        # One piece, the usual case, is returned as it is: a copy of a long text takes as long as its slice.
        return "".join([*kept, text[copied:]])

    def strip_content(self, content: Any) -> Any:
        """The content of a message, a string or a list of parts; the same object where nothing matched.

        A part of which nothing is left goes: a template would show it as an empty block.
        """
        if isinstance(content, str):
            return self.strip_text(content)
        if not isinstance(content, list | tuple):
            return content
        parts: list[Any] = []
        changed = False
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else part
            stripped = self.strip_text(text) if isinstance(text, str) else text
            if stripped is text:
                parts.append(part)
                continue
            changed = True
            if stripped:
                parts.append({**part, "text": stripped} if isinstance(part, Mapping) else stripped)
        return parts if changed else content


def without_nonces(messages: Sequence[Mapping[str, Any]], rules: NonceRules) -> Sequence[Mapping[str, Any]]:
    """The chat without the nonce lines of its leading system and developer messages.

    Those of the user are left alone: what a user quotes is meant. Returns the same object where nothing matched, and
    changes no message in place.
    """
    stripped: list[Mapping[str, Any]] | None = None
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in HEAD_ROLES:
            break
        content = message.get("content")
        cleaned = rules.strip_content(content)
        if cleaned is not content:
            stripped = stripped if stripped is not None else list(messages)
            stripped[index] = {**message, "content": cleaned}
    return messages if stripped is None else stripped
