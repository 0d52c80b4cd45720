"""What the fake engine answers: a function of the prompt and the parameters alone.

A line in the last user message directs it:

- `say: TEXT` answers TEXT, which is a JSON string (for several lines) or the rest of the line;
- `see: images` answers the placeholders of the prompt's images, in their order;
- `fault: job` makes this request fail, `fault: crash` ends the engine.

Otherwise the answer is a sentence picked by a hash of the prompt and, when sampling, of the seed.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from exllamav3_adapters.answer_format.reasoning_tags import ReasoningTags
from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.fake import template

Fault: TypeAlias = Literal["job", "crash"]
_FAULTS: dict[str, Fault] = {"job": "job", "crash": "crash"}
_DIRECTIVE = re.compile(r"^[ \t]*(say|see|fault): ?(.*?)[ \t\r]*$", re.MULTILINE)
_IMAGE = re.compile(r"\[image [0-9a-f]{8} \d+x\d+\]")
_WORDS = ("amber", "birch", "cedar", "dune", "ember", "fjord", "glade", "heath", "inlet", "jetty", "kelp", "lagoon")
_NUM_WORDS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """`tokens` are all that is sampled; the first `num_visible` of them are text that the reader gets."""

    tokens: bytes
    num_visible: int
    reason: Literal["stop", "length"]
    fault: Fault | None = None


def answer(
    prompt_text: str,
    params: GenerationParams,
    room: int,
    *,
    reasoning: ReasoningTags | None = None,
    opens_reasoning: bool = False,
) -> Answer:
    """The whole answer, at most `room` tokens, its reasoning within the budget. Raises `InvalidRequest` for a grammar
    without a `say:` line."""
    directives = dict(_DIRECTIVE.findall(template.last_user_message(prompt_text)))
    text = _directed(directives, prompt_text)
    if text is None:
        text = _sentence(prompt_text, params)
    for banned in params.banned_strings:
        text = text.replace(banned, "")
    budget = params.chat.reasoning_budget if params.chat is not None else None
    if budget is not None and reasoning is not None:
        text = _within_budget(text, reasoning, budget, is_open=opens_reasoning)
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    # One token past the limit is enough to say that the answer was cut there.
    tokens = text.encode(errors="replace").ljust(min(params.min_tokens, limit + 1), b".")
    return _cut(tokens, params, limit, _FAULTS.get(directives.get("fault", "")))


def _cut(tokens: bytes, params: GenerationParams, limit: int, fault: Fault | None) -> Answer:
    found = [(tokens.find(stop), stop) for stop in (stop.encode(errors="replace") for stop in params.stop if stop)]
    start, stop = min(((at, stop) for at, stop in found if at >= 0), default=(len(tokens), b""))
    end = start + len(stop)
    if end > limit:
        return Answer(tokens=tokens[:limit], num_visible=min(start, limit), reason="length", fault=fault)
    return Answer(tokens=tokens[:end], num_visible=start, reason="stop", fault=fault)


def _within_budget(text: str, tags: ReasoningTags, budget: int, *, is_open: bool) -> str:
    """What is too much of the reasoning at its beginning is left out, and the family's end written in its place."""
    begin = 0 if is_open else text.find(tags.start) + len(tags.start)
    if not is_open and not text.lstrip().startswith(tags.start):
        return text
    thought, _, rest = text[begin:].partition(tags.end)
    tokens = thought.encode(errors="replace")
    if len(tokens) <= budget:
        return text
    return text[:begin] + tokens[:budget].decode(errors="ignore") + tags.forced_end + rest.lstrip("\n")


def _directed(directives: dict[str, str], prompt_text: str) -> str | None:
    if directives.get("see") == "images":
        return " ".join(_IMAGE.findall(prompt_text)) or "no images"
    return _said(directives["say"]) if "say" in directives else None


def _said(value: str) -> str:
    if value.startswith('"'):
        try:
            # A real template may write more in the same line.
            return str(json.JSONDecoder().raw_decode(value)[0])
        except ValueError:
            pass
    return value


def _sentence(prompt_text: str, params: GenerationParams) -> str:
    if params.grammar is not None:
        raise InvalidRequest("the fake engine follows no grammar; direct its answer with a `say:` line", "grammar")
    seed = params.seed if params.temperature > 0 else None
    digest = hashlib.blake2b(f"{seed}\n{prompt_text}".encode(), digest_size=_NUM_WORDS).digest()
    return " ".join(_WORDS[byte % len(_WORDS)] for byte in digest).capitalize() + "."
