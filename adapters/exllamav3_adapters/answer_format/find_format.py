"""Chooses the form of a model's answers when it loads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

from exllamav3_adapters.answer_format import harmony
from exllamav3_adapters.answer_format.answer_format import AnswerFormat, TaggedFormat
from exllamav3_adapters.answer_format.either_form import EitherForm
from exllamav3_adapters.answer_format.reasoning_tags import FAMILIES, ReasoningTags, find_reasoning_tags
from exllamav3_adapters.answer_format.tool_format import ToolFormat
from exllamav3_adapters.answer_format.tool_formats import OWN_BLOCK, TOOL_FORMATS, find_tool_format
from exllamav3_adapters.engine_settings import ModelOptions
from exllamav3_adapters.errors import LoadFailed

logger = logging.getLogger("exllamav3_adapters")

FRAMES: Final = (("<|START_RESPONSE|>", "<|END_RESPONSE|>"),)
"""Tags that a family puts around the text of its answers: Command R7B and A."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatOptions:
    """What the settings say of the form; see `ModelOptions`."""

    tool_format: str = "auto"
    reasoning: Literal["auto", "on", "off"] = "auto"
    reasoning_start_token: str | None = None
    reasoning_end_token: str | None = None
    model_dir: str | None = None
    """Where a form may find the model's vocabulary. None: there is no such folder."""

    @classmethod
    def of(cls, options: ModelOptions) -> Self:
        return cls(
            tool_format=options.tool_format,
            reasoning=options.reasoning,
            reasoning_start_token=options.reasoning_start_token,
            reasoning_end_token=options.reasoning_end_token,
            model_dir=options.model_dir,
        )


def tool_format_names() -> tuple[str, ...]:
    """What `tool_format` may be, beside `auto` and `none`."""
    return tuple(sorted((*TOOL_FORMATS, harmony.NAME)))


def find_format(template_sources: Sequence[str], options: FormatOptions, *, knows_tools: bool) -> AnswerFormat:
    """`knows_tools`: the template renders tools itself. Raises `LoadFailed` for a form that does not exist, or that
    cannot be read here."""
    if options.tool_format == harmony.NAME or (
        options.tool_format in ("auto", "none") and harmony.is_written_by(template_sources)
    ):
        return harmony.load_format(
            options.model_dir, calls=options.tool_format != "none", tells_reasoning=options.reasoning != "off"
        )
    return TaggedFormat(
        tools=_tools(template_sources, options.tool_format, knows_tools),
        reasoning=_reasoning(template_sources, options),
        frame=_frame(template_sources),
    )


def _frame(template_sources: Sequence[str]) -> tuple[str, ...]:
    return next((tags for tags in FRAMES if any(tags[0] in source for source in template_sources)), ())


def _tools(template_sources: Sequence[str], name: str, knows_tools: bool) -> ToolFormat | None:
    if name == "none":
        return None
    if name != "auto":
        if name not in TOOL_FORMATS:
            raise LoadFailed(
                f"model.tool_format: there is no {name!r}; use auto, none, {', '.join(tool_format_names())}"
            )
        return TOOL_FORMATS[name]
    found = find_tool_format(template_sources)
    if not knows_tools:
        asked = TOOL_FORMATS[OWN_BLOCK]
        return asked if found is None or found is asked else EitherForm(asked, found)
    if found is None:
        logger.warning(
            "the form of the model's tool calls is not known from its chat template, so they stay text; "
            "set model.tool_format to one of %s",
            ", ".join(tool_format_names()),
        )
    return found


def _reasoning(template_sources: Sequence[str], options: FormatOptions) -> ReasoningTags | None:
    if options.reasoning == "off":
        return None
    found = find_reasoning_tags(template_sources)
    if options.reasoning == "on" and found is None:
        found = FAMILIES[-1]
    start, end = options.reasoning_start_token, options.reasoning_end_token
    if start is None and end is None:
        return found
    known = found or FAMILIES[-1]
    return ReasoningTags(start or known.start, end or known.end)
