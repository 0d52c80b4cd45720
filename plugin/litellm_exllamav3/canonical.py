"""One form for all spellings of a head, and its digest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import orjson

from litellm_exllamav3.chat_request import TEXT_PARTS
from litellm_exllamav3.head import RequestHead
from litellm_exllamav3.nonces import NonceRules
from litellm_exllamav3.tool_definition import function_of, plain_function

_DIGEST_BYTES = 16
_NO_GIL_BYTES = 2047
"""hashlib lets go of the GIL for longer input. Beside a busy thread it then waits up to a switch interval (5 ms) to get
it back, to save 0.1 ms of hashing."""


def canonical_form(head: RequestHead, rules: NonceRules) -> bytes | None:
    """What makes this head the one it is, about as long in bytes as the head itself.

    The route does not count, for LiteLLM translates heads of all routes to one form, nor do the order of keys, marks
    for a provider's own cache and nonce lines, nor whether a text comes as a string or as a single part; the order of
    tools and messages does, and so do the template's variables. None where the head cannot be written as JSON.
    """
    form: list[Any] = [
        [_plain_message(message, rules) for message in head.messages],
        [_plain_tool(tool) for tool in head.tools],
    ]
    if head.variables:
        form.append(head.variables)
    try:
        return orjson.dumps(form, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _slow_form(form)


def head_digest(form: bytes) -> str:
    """The first 128 bits of SHA-256 in hexadecimal: processors with instructions for it take half of BLAKE2b's time."""
    digest = sha256()
    view = memoryview(form)
    for start in range(0, len(form), _NO_GIL_BYTES):
        digest.update(view[start : start + _NO_GIL_BYTES])
    return digest.hexdigest()[: 2 * _DIGEST_BYTES]


def _slow_form(form: object) -> bytes | None:
    """For lone surrogates and integers past 64 bits, which orjson refuses and a client may send."""
    try:
        return json.dumps(form, sort_keys=True, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError):
        return None


def _plain_message(message: Mapping[str, Any], rules: NonceRules) -> list[Any]:
    """Its role, its text and, if it has one, its name: what the provider keeps of a message of this role."""
    plain = [message.get("role"), _plain_content(rules.strip_content(message.get("content")))]
    return plain if message.get("name") is None else [*plain, message["name"]]


def _plain_content(content: Any) -> Any:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    parts = [_plain_part(part) for part in content]
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return parts


def _plain_part(part: Any) -> Any:
    """The text of a text part, and any other part without its mark."""
    if isinstance(part, Mapping) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
        return part["text"]
    return _unmarked(part)


def _plain_tool(tool: Any) -> Any:
    function = function_of(tool)
    return _unmarked(tool) if function is None else plain_function(function)


def _unmarked(value: Any) -> Any:
    if isinstance(value, Mapping) and "cache_control" in value:
        return {key: item for key, item in value.items() if key != "cache_control"}
    return value
