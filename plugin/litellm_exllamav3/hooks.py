"""LiteLLM's callback: `callbacks: [litellm_exllamav3.hooks.capture]` in a proxy's config."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import litellm
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import ProxyException, UserAPIKeyAuth
from litellm.types.utils import TextCompletionResponse

from exllamav3_adapters.errors import EngineError, InvalidRequest
from litellm_exllamav3.alias_target import Target, find_target, model_key
from litellm_exllamav3.body_check import refuse_malformed
from litellm_exllamav3.count_routes import count_with_engines
from litellm_exllamav3.deployment_params import with_allowed_params
from litellm_exllamav3.error_table import error_row, retry_after_header
from litellm_exllamav3.field_check import FieldCheck
from litellm_exllamav3.head import request_head
from litellm_exllamav3.other_calls import refuse_other_call
from litellm_exllamav3.retention import request_is_retained
from litellm_exllamav3.running_gateway import current_gateway
from litellm_exllamav3.settings import ModelSettings
from litellm_exllamav3.sighting import leave_note
from litellm_exllamav3.text_ledger import close_ledger, open_ledger, repaired_stream
from litellm_exllamav3.text_prompts import drop_token_ids, hold_token_ids

logger = logging.getLogger("litellm_exllamav3")

_fields: Final = FieldCheck()
_ROUTES_WITHOUT_ERRORS: Final = ("anthropic_messages", "aresponses", "atext_completion")
"""Where LiteLLM tries again, or answers 200 and puts the error into the stream, or drops `retry-after`."""


class CaptureHook(CustomLogger):  # type: ignore[misc]  # litellm has no types for us
    """Counts the heads of requests to our models, refuses what LiteLLM would fail on, and keeps what it would lose.

    Waits for nothing, takes under a millisecond.
    """

    async def async_pre_call_hook(
        self, user_api_key_dict: UserAPIKeyAuth, cache: Any, data: dict[str, Any], call_type: str
    ) -> None:
        # LiteLLM calls only a hook that the instance's own class defines.
        leave_note()  # in case another request's is left in this context
        drop_token_ids()
        close_ledger()
        try:
            target = find_target(data, user_api_key_dict)
        except Exception as error:
            logger.warning("the proxy's router was not understood, and nothing is counted: %s", type(error).__name__)
            return
        if target.is_ours_alone:
            await _refuse(target, data, call_type)
        if target.keys:
            _count(target.keys, user_api_key_dict, data, call_type)
        if target.keys and call_type == "atext_completion":
            open_ledger()

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Once LiteLLM has chosen where a request goes, and once more with what it has translated it to."""
        return with_allowed_params(kwargs) if model_key(kwargs) is not None else None

    def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: UserAPIKeyAuth, response: Any, request_data: dict[str, Any]
    ) -> Any:
        """Not `async`: what is no text completion of ours passes as it is, with no step more for each chunk."""
        options = request_data.get("stream_options")
        wants_usage = isinstance(options, Mapping) and options.get("include_usage") is True
        return repaired_stream(response, partial(_TextChunk, wants_usage=wants_usage))


class _TextChunk(TextCompletionResponse):  # type: ignore[misc]  # litellm has no types for us
    """LiteLLM writes a stream's chunks without their nulls; OpenAI's clients look for a `finish_reason` in each."""

    def __init__(self, *, usage: Any, wants_usage: bool, **fields: Any) -> None:
        super().__init__(**fields)
        self.usage = usage if wants_usage else None  # which would be zeros

    def model_dump_json(self, **options: Any) -> str:
        return str(super().model_dump_json())


async def _refuse(target: Target, data: dict[str, Any], call_type: str) -> None:
    """What only a hook can refuse with its true status. Raises `ProxyException`."""
    try:
        if not target.has_fallbacks:
            refuse_other_call(call_type, target.keys[0])
        refuse_malformed(data, call_type)
        if call_type == "atext_completion":
            hold_token_ids(data)
        if litellm.drop_params is not True:
            _fields.check(data, call_type, has_database=_has_database())
        if call_type in _ROUTES_WITHOUT_ERRORS and not target.has_fallbacks:
            await _refuse_unless_one_can_answer(target.keys)
        return
    except EngineError as error:
        row = error_row(error)
        param = error.param if isinstance(error, InvalidRequest) else None
        headers = retry_after_header(error)
        refusal = ProxyException(message=error.message, type=row.type, param=param, code=row.status, headers=headers)
    raise refusal


def _has_database() -> bool:
    return getattr(sys.modules.get("litellm.proxy.proxy_server"), "prisma_client", None) is not None


async def _refuse_unless_one_can_answer(keys: tuple[str, ...]) -> None:
    """Raises `QueueFull` or `EngineUnavailable` as the provider would, if it would for every one of the models."""
    gateway = current_gateway()
    models = [gateway.model(key) for key in keys] if gateway is not None else [None]
    refusal: EngineError | None = None
    for model in models:
        if model is None:
            return
        try:
            await model.admit().aclose()
            return
        except EngineError as error:
            refusal = error
    if refusal is not None:
        raise refusal


def _count(keys: tuple[str, ...], user: UserAPIKeyAuth, data: Mapping[str, Any], call_type: str) -> None:
    gateway = current_gateway()
    if gateway is None:
        return
    try:
        not_retained = [key for key in keys if not _is_retained(gateway.settings.models.get(key), user, data)]
        leave_note(not_retained=not_retained)
        retained = [key for key in keys if key not in not_retained]
        head = request_head(data, call_type) if retained else None
        if head is not None and gateway.capture is not None:
            sightings = [gateway.capture.observe(key, head, user.api_key or "") for key in retained]
            leave_note(sightings, not_retained=not_retained)
    except Exception as error:
        leave_note(not_retained=keys)
        # Counting must never cost a request. Without the error's text, which may quote one.
        logger.warning("a request's head was not counted: %s", type(error).__name__)


def _is_retained(settings: ModelSettings | None, user: UserAPIKeyAuth, data: Mapping[str, Any]) -> bool:
    return settings is not None and request_is_retained(
        data,
        capture_enabled=settings.capture.enabled,
        logging_off=litellm.turn_off_message_logging is True,
        logging_obj=data.get("litellm_logging_obj"),
        key_metadata=user.metadata,
        team_metadata=user.team_metadata,
    )


capture = CaptureHook()
count_with_engines(sys.modules.get("litellm.proxy.proxy_server"))
