"""How an error of the contract looks to an HTTP client: one row a class, complete by test."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exllamav3_adapters import errors
from litellm_exllamav3.running_gateway import UnknownModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorRow:
    """`type` and `code` are OpenAI's own words for the error, so that clients' handling of them works."""

    status: int
    type: str
    code: str


INTERNAL_ERROR = ErrorRow(status=500, type="server_error", code="internal_error")

ERROR_TABLE: dict[type[errors.EngineError], ErrorRow] = {
    errors.EngineError: INTERNAL_ERROR,
    errors.InvalidRequest: ErrorRow(status=400, type="invalid_request_error", code="invalid_value"),
    UnknownModel: ErrorRow(status=404, type="invalid_request_error", code="model_not_found"),
    errors.ContextLengthExceeded: ErrorRow(status=400, type="invalid_request_error", code="context_length_exceeded"),
    errors.QueueFull: ErrorRow(status=429, type="rate_limit_error", code="queue_full"),
    errors.GenerationTimeout: ErrorRow(status=408, type="timeout_error", code="timeout"),
    errors.JobFailed: ErrorRow(status=500, type="server_error", code="generation_failed"),
    errors.EngineUnavailable: ErrorRow(status=503, type="service_unavailable_error", code="engine_unavailable"),
    errors.LoadFailed: ErrorRow(status=503, type="service_unavailable_error", code="model_load_failed"),
    errors.EngineDied: ErrorRow(status=503, type="service_unavailable_error", code="engine_died"),
}


def error_row(error: Exception) -> ErrorRow:
    """The row of the error's nearest class; an error that no engine raises on purpose is a 500."""
    for cls in type(error).__mro__:
        row = ERROR_TABLE.get(cls)
        if row is not None:
            return row
    return INTERNAL_ERROR


def client_message(error: Exception, model_key: str) -> str:
    """What a client may read. An unexpected error keeps its text to itself: it may quote a prompt."""
    if isinstance(error, errors.EngineError):
        return error.message
    return (
        f"exllamav3/{model_key} failed unexpectedly ({type(error).__name__}); the proxy's log has the place. "
        "The same request may work again."
    )


def retry_after_header(error: Exception) -> dict[str, str]:
    """Whole seconds, at least 1, where the error knows when to come back."""
    if isinstance(error, errors.QueueFull):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_seconds)))}
    return {}
