"""The prompts of a text completion: texts, or token ids, one or several.

LiteLLM makes user's messages of texts and fails on token ids. So the pre-call hook puts place holders in their place
and leaves the ids in a context variable, which a client cannot write (see `sighting.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from exllamav3_adapters.errors import InvalidRequest

TextPrompt: TypeAlias = str | tuple[int, ...]

MOST_PROMPTS: Final = 2048
"""OpenAI's limit."""
_SHAPES: Final = "a string, a list of strings, a list of token ids or a list of lists of token ids"

_TOKEN_PROMPTS: ContextVar[tuple[TextPrompt, ...] | None] = ContextVar("litellm_exllamav3_token_prompts", default=None)


def read_prompts(value: Any) -> tuple[TextPrompt, ...]:
    """Raises `InvalidRequest` for what is none of OpenAI's shapes. Whether a token exists is for the engine to say."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not value:
        raise InvalidRequest(f"prompt must be {_SHAPES}, and not empty.", "prompt")
    if all(map(_is_token, value)):
        return (tuple(value),)
    if len(value) > MOST_PROMPTS:
        raise InvalidRequest(f"prompt may hold at most {MOST_PROMPTS} prompts; it holds {len(value)}.", "prompt")
    return tuple(_prompt(item, f"prompt[{index}]") for index, item in enumerate(value))


def hold_token_ids(body: dict[str, Any]) -> None:
    """Leaves the prompts of a request's body for the provider if LiteLLM would fail on them, and replaces them there.

    Token ids mean something under this model's tokenizer alone, so no other model may answer in its place. Raises as
    `read_prompts`.
    """
    prompts = read_prompts(body.get("prompt"))
    if all(isinstance(prompt, str) for prompt in prompts):
        return
    _TOKEN_PROMPTS.set(prompts)
    body["prompt"] = [f"<{len(prompt)} token ids>" if not isinstance(prompt, str) else prompt for prompt in prompts]
    body["disable_fallbacks"] = True


def drop_token_ids() -> None:
    """In case another request's are left in this context."""
    _TOKEN_PROMPTS.set(None)


def find_prompts(messages: Sequence[Mapping[str, Any]]) -> tuple[TextPrompt, ...]:
    """What the hook left, or the texts that LiteLLM made `messages` of, which other hooks may have edited."""
    held = _TOKEN_PROMPTS.get()
    return held if held is not None else read_prompts([message.get("content") for message in messages])


def _prompt(value: Any, where: str) -> TextPrompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(map(_is_token, value)):
        return tuple(value)
    raise InvalidRequest(f"{where} must be a string or a list of token ids; prompt is {_SHAPES}.", where)


def _is_token(value: object) -> bool:
    """Past 32 bits no vocabulary goes, and no wire format need."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32
