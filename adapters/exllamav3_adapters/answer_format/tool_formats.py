"""Every form of tool calls by its name in the settings, and which templates write it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from exllamav3_adapters.answer_format.tool_format import ToolFormat

logger = logging.getLogger("exllamav3_adapters")

TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {}

OWN_BLOCK: Final = "hermes"
"""The form of `tool_block.py`, which templates that know no tools are given."""


def find_tool_format(template_sources: Sequence[str]) -> ToolFormat | None:
    """The form that a template's calls have. None: it is not known."""
    return None
