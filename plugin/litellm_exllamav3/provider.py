"""LiteLLM's custom provider: `custom_handler: litellm_exllamav3.provider.handler` in a proxy's config.

LiteLLM calls with keywords only. From a request only the model key, the messages and the generation parameters are
read; what an engine is told at load comes from the config file alone.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import traceback
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NoReturn

import httpx
import litellm
from litellm.llms.custom_llm import CustomLLM
from litellm.types.utils import (
    Delta,
    ModelResponse,
    ModelResponseStream,
    PromptTokensDetailsWrapper,
    StreamingChoices,
    Usage,
)

from exllamav3_adapters.contract import Finished
from exllamav3_adapters.errors import ContextLengthExceeded, EngineError, EngineUnavailable, InvalidRequest
from litellm_exllamav3.answer_params import read_answer_params
from litellm_exllamav3.chat_call import ChatCall
from litellm_exllamav3.chat_request import NO_TEXT_COMPLETIONS, read_chat
from litellm_exllamav3.error_table import client_message, error_row, retry_after_header
from litellm_exllamav3.gateway_checks import PROVIDER
from litellm_exllamav3.nonces import without_nonces
from litellm_exllamav3.request_params import flat_params, generation_params
from litellm_exllamav3.retention import request_is_retained
from litellm_exllamav3.running_gateway import nonce_rules, running_gateway, served_model, start_in_proxy
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.sighting import find_sighting, hook_forbids_keeping

logger = logging.getLogger("litellm_exllamav3")

HEALTH_CHECK_KEY: Final = "litellm-internal-health-check"
_LITELLMS_MOST_STOPS: Final = 4


class Exllamav3Provider(CustomLLM):  # type: ignore[misc]  # litellm has no types for us
    """Serves `exllamav3/<model key>`. Everything runs on the loop; the engines run elsewhere."""

    async def acompletion(self, *, model: str, model_response: ModelResponse, **request: Any) -> ModelResponse:
        failure: Exception
        try:
            return await self._complete(model, model_response, request)
        except Exception as error:
            failure = litellm_error(error, model)
        # Raised outside the except block: LiteLLM looks through chained errors, and answers by what it finds there.
        raise failure

    async def astreaming(self, *, model: str, **request: Any) -> AsyncGenerator[ModelResponseStream, None]:
        failure: Exception
        try:
            async with aclosing(self._stream(model, request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        except Exception as error:
            failure = litellm_error(error, model)
        raise failure

    async def aembedding(self, *, model: str, **request: Any) -> NoReturn:
        raise litellm_error(InvalidRequest(f"exllamav3/{model} answers chats and makes no embeddings.", "model"), model)

    def completion(self, *, model: str, **request: Any) -> NoReturn:
        """Engines belong to an event loop, which a synchronous call has not."""
        raise litellm_error(InvalidRequest("exllamav3 models answer on an event loop; use litellm.acompletion."), model)

    def streaming(self, *, model: str, **request: Any) -> NoReturn:
        self.completion(model=model)

    async def _complete(self, model: str, response: ModelResponse, request: Mapping[str, Any]) -> ModelResponse:
        response.id, response.created, response.model = _new_id(), int(time.time()), model
        if _is_health_check(request["litellm_params"]):
            _check_health(served_model(running_gateway(), model))
            return _filled(
                response, "ok", Finished(reason="stop", prompt_tokens=0, cached_tokens=0, completion_tokens=0)
            )
        text: list[str] = []
        async with aclosing(_chat_call(model, request).answer()) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return _filled(response, "".join(text), event)
                text.append(event.text)
        raise EngineError(f"model '{model}' ended its answer without a reason")

    async def _stream(self, model: str, request: Mapping[str, Any]) -> AsyncGenerator[ModelResponseStream, None]:
        chunks = _Chunks(model)
        async with aclosing(_chat_call(model, request).answer()) as events:
            # Nothing is sent before the first text: until then an error is still an HTTP error.
            async for event in events:
                if isinstance(event, Finished):
                    for chunk in chunks.last(event):
                        yield chunk
                    return
                yield chunks.text(event.text)
        raise EngineError(f"model '{model}' ended its answer without a reason")


class _Chunks:
    """The chunks of one stream, which share their id and date."""

    def __init__(self, model: str) -> None:
        self._id = _new_id()
        self._created = 0
        self._model = model

    def text(self, text: str) -> ModelResponseStream:
        role = None if self._created else "assistant"
        # LiteLLM dates its own last chunk when it sees our first one.
        self._created = self._created or int(time.time())
        return self._chunk(StreamingChoices(index=0, delta=Delta(role=role, content=text)))

    def last(self, finished: Finished) -> list[ModelResponseStream]:
        """Usage first: LiteLLM drops what comes with or after a finish reason, and estimates instead."""
        opening = [] if self._created else [self.text("")]
        finish = StreamingChoices(index=0, delta=Delta(), finish_reason=finished.reason)
        return [*opening, self._chunk(usage=_usage(finished)), self._chunk(finish)]

    def _chunk(self, *choices: StreamingChoices, **fields: Any) -> ModelResponseStream:
        return ModelResponseStream(
            id=self._id, created=self._created, model=self._model, choices=list(choices), **fields
        )


def litellm_error(error: Exception, model: str) -> Exception:
    """The error as LiteLLM's own class, so that it is raised once: `num_retries` of 0 on the error ends the router's
    retries for this request, and leaves those of other providers alone."""
    row = error_row(error)
    if not isinstance(error, EngineError):
        # Without the error's text, which may quote a prompt.
        where = "".join(traceback.format_tb(error.__traceback__))
        logger.error("model %s: unexpected %s\n%s", model, type(error).__name__, where)
    common = {"message": client_message(error, model), "model": model, "llm_provider": PROVIDER}
    failure: Any
    if isinstance(error, ContextLengthExceeded):
        failure = litellm.ContextWindowExceededError(**common)
    elif row.status == 400:
        failure = litellm.BadRequestError(**common)
    elif row.status == 404:
        failure = litellm.NotFoundError(**common)
    elif row.status == 408:
        failure = litellm.Timeout(**common)
    elif row.status == 429:
        failure = litellm.RateLimitError(**common, headers=retry_after_header(error))
    elif row.status == 503:
        failure = litellm.ServiceUnavailableError(**common)
    else:
        failure = litellm.InternalServerError(**common)
    failure.num_retries = 0
    failure.type = row.type
    failure.param = error.param if isinstance(error, InvalidRequest) else None
    failure.code = row.code
    # LiteLLM writes the status as `code`; this is where it lets a provider's own code through.
    failure.provider_specific_fields = {"code": row.code}
    assert isinstance(failure, Exception)
    return failure


def _chat_call(model: str, request: Mapping[str, Any]) -> ChatCall:
    gateway = running_gateway()
    served = served_model(gateway, model)
    litellm_params = request["litellm_params"]
    params = flat_params(_with_all_stops(request["optional_params"], litellm_params))
    if request["logging_obj"].call_type in ("atext_completion", "text_completion"):
        # LiteLLM makes a user's message of the prompt, which the chat template would then wrap.
        raise InvalidRequest(NO_TEXT_COMPLETIONS, "prompt")
    chat = read_chat(request["messages"], params)
    answer = read_answer_params(params, chat)
    if answer.num_choices > 1:
        raise InvalidRequest("n must be 1.", "n")
    chat = answer.of_chat(chat)
    # Either may hold anything; LiteLLM itself takes no more than this for a yes.
    drop = litellm.drop_params is True or litellm_params.get("drop_params") is True
    return ChatCall(
        model=served,
        chat=replace(chat, messages=without_nonces(chat.messages, nonce_rules(gateway, model))),
        params=answer.of_generation(generation_params(params, drop_unsupported=drop)),
        timeout_seconds=_seconds(request.get("timeout")),
        retain=_is_retained(model, gateway.settings.models[model].capture.enabled, request),
        capture=gateway.capture,
        sighting=find_sighting(model),
    )


def _is_retained(model: str, capture_enabled: bool, request: Mapping[str, Any]) -> bool:
    """Asked here too, since a fallback of another provider's alias passed the hook as none of ours."""
    litellm_params = request["litellm_params"]
    # LiteLLM writes what it knows of the key into one or both, depending on the route.
    bags = [_metadata(litellm_params, name) for name in ("metadata", "litellm_metadata")]
    return not hook_forbids_keeping(model) and all(
        request_is_retained(
            litellm_params,
            capture_enabled=capture_enabled,
            logging_off=litellm.turn_off_message_logging is True,
            logging_obj=request["logging_obj"],
            key_metadata=bag.get("user_api_key_metadata"),
            team_metadata=bag.get("user_api_key_team_metadata"),
        )
        for bag in bags
    )


def _is_health_check(litellm_params: Mapping[str, Any]) -> bool:
    """Whether LiteLLM itself asks. Clients can set neither: a request of theirs has the request with it, and the key
    is LiteLLM's to write."""
    metadata = _metadata(litellm_params, "metadata")
    return metadata.get("user_api_key") == HEALTH_CHECK_KEY and not litellm_params.get("proxy_server_request")


def _metadata(litellm_params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    metadata = litellm_params.get(name)
    return metadata if isinstance(metadata, Mapping) else {}


def _check_health(served: ServedModel) -> None:
    """Raises `EngineUnavailable` with the reason unless the model answers, or would load if asked."""
    if served.state not in ("ready", "lazy"):
        raise EngineUnavailable(
            f"model '{served.key}' is {served.state}{f': {served.reason}' if served.reason else ''}"
        )


def _seconds(timeout: Any) -> float | None:
    """LiteLLM hands over its limit but does not enforce it. For an `httpx.Timeout` the time to read counts.

    Raises `InvalidRequest` for what can be no limit.
    """
    limit = timeout.read if isinstance(timeout, httpx.Timeout) else timeout
    if limit is None:
        return None
    try:
        seconds = float(limit)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds) or seconds <= 0:
        raise InvalidRequest("timeout must be a positive number of seconds.", "timeout")
    return seconds


def _with_all_stops(optional_params: Mapping[str, Any], litellm_params: Mapping[str, Any]) -> Mapping[str, Any]:
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


def _filled(response: ModelResponse, text: str, finished: Finished) -> ModelResponse:
    response.choices[0].message.content = text
    response.choices[0].finish_reason = finished.reason
    response.usage = _usage(finished)
    return response


def _usage(finished: Finished) -> Usage:
    return Usage(
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        total_tokens=finished.prompt_tokens + finished.completion_tokens,
        prompt_tokens_details=PromptTokensDetailsWrapper(cached_tokens=finished.cached_tokens),
    )


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"


handler = Exllamav3Provider()
start_in_proxy(sys.modules.get("litellm.proxy.proxy_server"))
