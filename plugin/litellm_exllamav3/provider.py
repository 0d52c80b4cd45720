"""LiteLLM's custom provider: `custom_handler: litellm_exllamav3.provider.handler` in a proxy's config.

LiteLLM calls with keywords only. From a request only the model key, the messages and the generation parameters are
read; what an engine is told at load comes from the config file alone.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NoReturn

import litellm
from litellm.llms.custom_llm import CustomLLM
from litellm.types.utils import (
    Choices,
    ModelResponse,
    ModelResponseStream,
    TextChoices,
    TextCompletionResponse,
    Usage,
)

from exllamav3_adapters.contract import Finished, Text
from exllamav3_adapters.errors import ContextLengthExceeded, EngineError, EngineUnavailable, InvalidRequest
from litellm_exllamav3.alias_target import model_key
from litellm_exllamav3.answer_chunks import AnswerChunks
from litellm_exllamav3.answer_message import WholeAnswer
from litellm_exllamav3.answer_params import read_answer_params
from litellm_exllamav3.chat_call import ChatCall
from litellm_exllamav3.chat_request import read_chat
from litellm_exllamav3.copies import refuse_too_many
from litellm_exllamav3.error_table import client_message, error_row, retry_after_header
from litellm_exllamav3.gateway_checks import PROVIDER
from litellm_exllamav3.image_sources import ImageSources
from litellm_exllamav3.lost_fields import with_lost_fields
from litellm_exllamav3.nonces import without_nonces
from litellm_exllamav3.other_calls import other_call_refusal
from litellm_exllamav3.request_params import flat_params, generation_params
from litellm_exllamav3.request_timeout import timeout_seconds
from litellm_exllamav3.retention import request_is_retained
from litellm_exllamav3.running_gateway import nonce_rules, running_gateway, served_model, start_in_proxy
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.sighting import find_sighting, hook_forbids_keeping
from litellm_exllamav3.stop_strings import with_all_stops
from litellm_exllamav3.text_answer import WholeText
from litellm_exllamav3.text_call import TextCall
from litellm_exllamav3.text_ledger import find_ledger
from litellm_exllamav3.text_params import read_text_params, sampling_params
from litellm_exllamav3.text_prompts import find_prompts
from litellm_exllamav3.token_count import wanted_count

logger = logging.getLogger("litellm_exllamav3")

HEALTH_CHECK_KEY: Final = "litellm-internal-health-check"


class Exllamav3Provider(CustomLLM):  # type: ignore[misc]  # litellm has no types for us
    """Serves `exllamav3/<model key>`. Everything runs on the loop; the engines run elsewhere."""

    async def acompletion(
        self, *, model: str, model_response: ModelResponse, **request: Any
    ) -> ModelResponse | TextCompletionResponse:
        """For `/v1/completions` its own response, which LiteLLM hands on: of a chat's it would lose the logprobs."""
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
        _refuse("embedding", model)

    async def aimage_generation(self, *, model: str, **request: Any) -> NoReturn:
        _refuse("image_generation", model)

    async def aimage_edit(self, *, model: str, **request: Any) -> NoReturn:
        _refuse("image_edit", model)

    def embedding(self, *, model: str, **request: Any) -> NoReturn:
        _refuse("embedding", model)

    def image_generation(self, *, model: str, **request: Any) -> NoReturn:
        _refuse("image_generation", model)

    def image_edit(self, *, model: str, **request: Any) -> NoReturn:
        _refuse("image_edit", model)

    def completion(self, *, model: str, **request: Any) -> NoReturn:
        """Engines belong to an event loop, which a synchronous call has not."""
        raise litellm_error(InvalidRequest("exllamav3 models answer on an event loop; use litellm.acompletion."), model)

    def streaming(self, *, model: str, **request: Any) -> NoReturn:
        self.completion(model=model)

    async def _complete(
        self, model: str, response: ModelResponse, request: Mapping[str, Any]
    ) -> ModelResponse | TextCompletionResponse:
        response.id, response.created, response.model = _new_id(), int(time.time()), model
        if _is_health_check(request["litellm_params"]):
            _check_health(served_model(running_gateway(), model))
            return _filled(response, _healthy())
        if _is_text_completion(request):
            return await self._complete_text(model, request)
        call = _chat_call(model, request)
        if (count := wanted_count()) is not None:
            count.tokens = await call.count_prompt()
            return _filled(response, _healthy())
        answer = WholeAnswer(
            num_choices=call.num_choices,
            with_logprobs=call.params.top_logprobs is not None,
            parsed_calls=request["logging_obj"].call_type == "anthropic_messages",
        )
        async with aclosing(call.answer()) as events:
            async for index, event in events:
                answer.add(index, event)
        if not answer.complete:
            raise EngineError(f"model '{model}' ended its answer without a reason")
        return _filled(response, answer)

    async def _complete_text(self, model: str, request: Mapping[str, Any]) -> TextCompletionResponse:
        call = _text_call(model, request)
        if (count := wanted_count()) is not None:
            count.tokens = await call.count_prompts()
            return TextCompletionResponse(id=_new_id("cmpl"), model=model)
        answer = WholeText(num_choices=call.num_choices, with_logprobs=call.params.top_logprobs is not None)
        async with aclosing(call.answer()) as events:
            async for index, event in events:
                answer.add(index, event)
        if not answer.complete:
            raise EngineError(f"model '{model}' ended its answer without a reason")
        return TextCompletionResponse(
            id=_new_id("cmpl"),
            created=int(time.time()),
            model=model,
            choices=[TextChoices(**choice) for choice in answer.choices()],
            usage=Usage(**answer.usage()),
        )

    async def _stream(self, model: str, request: Mapping[str, Any]) -> AsyncGenerator[ModelResponseStream, None]:
        is_text = _is_text_completion(request)
        call = _text_call(model, request) if is_text else _chat_call(model, request)
        ledger = find_ledger() if is_text else None
        chunks = AnswerChunks(call.num_choices)
        chunk_id, created = _new_id("cmpl" if is_text else "chatcmpl"), 0
        async with aclosing(call.answer()) as events:
            # Nothing is sent before the first piece of the answer: until then an error is still an HTTP error.
            async for index, event in events:
                if ledger is not None:
                    ledger.wrote(index, event)
                for chunk in chunks.take(index, event):
                    # LiteLLM dates its own last chunk when it sees our first one.
                    created = created or int(time.time())
                    yield ModelResponseStream(id=chunk_id, created=created, model=model, **chunk)
        if not chunks.complete:
            raise EngineError(f"model '{model}' ended its answer without a reason")


def _refuse(call: str, model: str) -> NoReturn:
    raise litellm_error(other_call_refusal(call, model), model)


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


def _is_text_completion(request: Mapping[str, Any]) -> bool:
    """LiteLLM makes a user's message of the prompt, which a chat template would then wrap."""
    return request["logging_obj"].call_type in ("atext_completion", "text_completion")


def _chat_call(model: str, request: Mapping[str, Any]) -> ChatCall:
    gateway = running_gateway()
    served = served_model(gateway, model)
    params = _params(request)
    settings = gateway.settings.models[model]
    chat = read_chat(request["messages"], params, with_images=settings.model.vision)
    answer = read_answer_params(params, chat)
    chat = answer.of_chat(chat)
    return ChatCall(
        model=served,
        chat=replace(chat, messages=without_nonces(chat.messages, nonce_rules(gateway, model))),
        params=answer.of_generation(
            generation_params(params, defaults=_sampling_defaults(model), drop_unsupported=_drops_params(request))
        ),
        num_choices=answer.num_choices,
        timeout_seconds=timeout_seconds(request.get("timeout")),
        retain=_is_retained(model, settings.capture.enabled, request),
        images=ImageSources.of(settings.images) if settings.model.vision else None,
        capture=gateway.capture,
        sighting=find_sighting(model),
    )


def _text_call(model: str, request: Mapping[str, Any]) -> TextCall:
    gateway = running_gateway()
    served = served_model(gateway, model)
    params = _params(request)
    drop = _drops_params(request)
    text = read_text_params(params, drop_unsupported=drop)
    prompts = find_prompts(request["messages"])
    refuse_too_many(len(prompts), text.num_choices)
    return TextCall(
        model=served,
        prompts=prompts,
        params=text.of_generation(
            generation_params(sampling_params(params), defaults=_sampling_defaults(model), drop_unsupported=drop)
        ),
        num_copies=text.num_choices,
        starts_text=text.starts_text,
        timeout_seconds=timeout_seconds(request.get("timeout")),
        retain=_is_retained(model, gateway.settings.models[model].capture.enabled, request),
    )


def _sampling_defaults(model: str) -> Mapping[str, Any]:
    return running_gateway().settings.models[model].sampling.defaults()


def _params(request: Mapping[str, Any]) -> dict[str, Any]:
    litellm_params = request["litellm_params"]
    params = with_all_stops(request["optional_params"], litellm_params)
    return flat_params(with_lost_fields(params, litellm_params, request["logging_obj"].call_type))


def _drops_params(request: Mapping[str, Any]) -> bool:
    """Either may hold anything; LiteLLM itself takes no more than this for a yes."""
    return litellm.drop_params is True or request["litellm_params"].get("drop_params") is True


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


def _healthy() -> WholeAnswer:
    answer = WholeAnswer()
    answer.add(0, Text(text="ok"))
    answer.add(0, Finished(reason="stop", prompt_tokens=0, cached_tokens=0, completion_tokens=0))
    return answer


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


def _filled(response: ModelResponse, answer: WholeAnswer) -> ModelResponse:
    response.choices = [Choices(**choice) for choice in answer.choices()]
    response.usage = Usage(**answer.usage())
    return response


def _new_id(kind: str = "chatcmpl") -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _publish(key: str, card: Mapping[str, Any]) -> None:
    """For `/v1/models`, `/model/info` and `/model_group/info`. What the operator wrote in a `model_info` stays."""
    router = getattr(sys.modules.get("litellm.proxy.proxy_server"), "llm_router", None)
    deployments = (router.get_model_list() or ()) if router is not None else ()
    own = {
        field
        for deployment in deployments
        if model_key(deployment["litellm_params"]) == key
        for field, value in (deployment.get("model_info") or {}).items()
        if value is not None
    }
    try:
        litellm.register_model({f"{PROVIDER}/{key}": {name: card[name] for name in card if name not in own}})
    except Exception as error:
        logger.warning("model %s: LiteLLM's model lists do not tell of it: %s", key, type(error).__name__)


def _keep_to_local_tokenizers() -> None:
    """LiteLLM counts the tokens of each stream that begins, for a price, and downloads a tokenizer for whatever is
    named like Llama 2 or 3, on the loop: where there is no internet the proxy answers nobody for the 23 s of its
    retries. What the operator sets in `litellm_settings` stays."""
    if litellm.disable_hf_tokenizer_download is None:
        litellm.disable_hf_tokenizer_download = True


handler = Exllamav3Provider()
_keep_to_local_tokenizers()
start_in_proxy(sys.modules.get("litellm.proxy.proxy_server"), _publish)
