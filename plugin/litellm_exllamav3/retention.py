"""Whether LiteLLM, or whoever sent the request, has asked that nothing of it be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from litellm_exllamav3.privacy import retains

_REDACTION_HEADERS: Final = ("x-litellm-enable-message-redaction", "litellm-enable-message-redaction")


def request_is_retained(
    params: Mapping[str, Any],
    *,
    capture_enabled: bool,
    logging_off: bool,
    logging_obj: object,
    key_metadata: object,
    team_metadata: object,
) -> bool:
    """Reads `params`: the body with LiteLLM's additions (in the hook), or its `litellm_params` (in the provider).

    `logging_off` is LiteLLM's global `turn_off_message_logging`. Any no is a no: a header by which a client turns
    LiteLLM's redaction off again does not turn capture on.
    """
    request = params.get("proxy_server_request")
    headers = request.get("headers") if isinstance(request, Mapping) else None
    asked_by_header = isinstance(headers, Mapping) and any(headers.get(name) for name in _REDACTION_HEADERS)
    # Filled by LiteLLM from the request, and from the callback settings of its key and team.
    dynamic = getattr(logging_obj, "standard_callback_dynamic_params", None)
    dynamic_off = dynamic.get("turn_off_message_logging") if isinstance(dynamic, Mapping) else None
    return retains(
        capture_enabled=capture_enabled and not logging_off and not asked_by_header,
        no_log=params.get("no-log"),
        message_logging_off=dynamic_off,
        key_metadata=key_metadata if isinstance(key_metadata, Mapping) else None,
        team_metadata=team_metadata if isinstance(team_metadata, Mapping) else None,
    )
