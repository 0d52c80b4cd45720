"""A client's stop strings, all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_LITELLMS_MOST_STOPS: Final = 4


def with_all_stops(optional_params: Mapping[str, Any], litellm_params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters with the client's own stop strings where LiteLLM cut them.

    Its `validate_openai_optional_params` keeps the first 4 alone, which is OpenAI's limit, for every provider.
    """
    left = optional_params.get("stop")
    if not isinstance(left, list) or len(left) != _LITELLMS_MOST_STOPS:
        return optional_params
    request = litellm_params.get("proxy_server_request")
    body = request.get("body") if isinstance(request, Mapping) else None
    for name in ("stop", "stop_sequences"):  # of /v1/chat/completions and of /v1/messages
        sent = body.get(name) if isinstance(body, Mapping) else None
        if isinstance(sent, list) and len(sent) > len(left) and sent[: len(left)] == left:
            return {**optional_params, "stop": sent}
    return optional_params
