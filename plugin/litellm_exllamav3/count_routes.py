"""The routes of LiteLLM that count tokens: `/utils/token_counter` and those under `/v1/messages` and `/v1/responses`.

They estimate, and ask no custom provider. All end in `proxy_server.count_request_tokens`, which is wrapped here: where
an alias leads to our models alone and one of them is loaded, its engine counts; everything else goes on to LiteLLM,
whose answer then says that it is an estimate. That function is told less than the body says, so the two routes that
have more leave their body on the way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any, Final

from exllamav3_adapters.errors import EngineError
from litellm_exllamav3.alias_target import find_target
from litellm_exllamav3.body_check import refuse_malformed
from litellm_exllamav3.error_table import error_row
from litellm_exllamav3.running_gateway import current_gateway
from litellm_exllamav3.text_prompts import drop_token_ids
from litellm_exllamav3.token_count import counting

logger = logging.getLogger("litellm_exllamav3")

_SEAM: Final = "count_request_tokens"
_BODY_READER: Final = "read_request_body"
_BODY_MODULES: Final = (
    "litellm.proxy.common_utils.http_parsing_utils",
    "litellm.proxy.anthropic_endpoints.endpoints",
    "litellm.proxy.response_api_endpoints.endpoints",
)
"""Where it is defined, and the two that use it here: LiteLLM may import them with the first request, or before."""
_PATHS: Final = {"/messages/count_tokens": "anthropic_messages", "/responses/input_tokens": "aresponses"}
"""How the paths of the two routes end."""
_ROUTER_CALLS: Final = {
    "acompletion": "acompletion",
    "atext_completion": "atext_completion",
    "anthropic_messages": "aanthropic_messages",
    "aresponses": "aresponses",
}
_TEMPLATES_OWN: Final = ("chat_template_kwargs", "enable_thinking", "reasoning_effort")
_FIELDS: Final = {
    "acompletion": ("messages", "tools"),
    "atext_completion": ("prompt",),
    "anthropic_messages": (
        *("messages", "system", "tools", "tool_choice", "thinking", "output_config"),
        *_TEMPLATES_OWN,
    ),
    "aresponses": ("input", "instructions", "tools", "tool_choice", "reasoning", "text", *_TEMPLATES_OWN),
}
"""What a prompt may depend on. Of a body that only wants to be counted nothing else goes on."""

_BODY: ContextVar[tuple[str, Mapping[str, Any]] | None] = ContextVar("litellm_exllamav3_counted_body", default=None)


def count_with_engines(proxy_server: ModuleType | None) -> None:
    """Wraps the proxy's functions, once. Says so in the log where this LiteLLM has them no more."""
    original = getattr(proxy_server, _SEAM, None)
    if proxy_server is None or getattr(original, "counts_with_engines", False):
        return
    if original is None:
        logger.warning("this LiteLLM has no %s: tokens are counted by its estimate, not by the engine", _SEAM)
        return
    setattr(proxy_server, _SEAM, _counted(proxy_server, original))
    modules = [sys.modules[name] for name in _BODY_MODULES if name in sys.modules]
    readers = {getattr(module, _BODY_READER, None) for module in modules}
    reader = readers.pop() if len(readers) == 1 else None
    if reader is None:
        logger.warning("this LiteLLM has no %s: counts leave out what a prompt owes to other fields", _BODY_READER)
        return
    for module in modules:
        setattr(module, _BODY_READER, _noted(reader))


def _noted(reader: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(reader)
    async def read(request: Any, *args: Any, **kwargs: Any) -> Any:
        body = await reader(request, *args, **kwargs)
        path = request.scope.get("path", "") if request is not None else ""
        for end, call_type in _PATHS.items():
            if path.endswith(end) and isinstance(body, Mapping):
                _BODY.set((call_type, body))
        return body

    return read


def _counted(proxy_server: Any, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(original)
    async def count(request: Any, *args: Any, **kwargs: Any) -> Any:
        refusal: Exception
        try:
            found = await _engine_count(proxy_server.llm_router, request)
            if found is None:
                return await original(request, *args, **kwargs)
            key, tokens = found
            return proxy_server.TokenCountResponse(
                total_tokens=tokens,
                request_model=request.model,
                model_used=key,
                tokenizer_type="exllamav3",
                count_source="provider",
            )
        except Exception as error:
            refusal = _refusal(proxy_server, error)
        raise refusal

    count.counts_with_engines = True  # type: ignore[attr-defined]
    return count


def _refusal(proxy_server: Any, error: Exception) -> Exception:
    """As the route that is counted for would say it, and not as LiteLLM's counting does: with a 500."""
    param = getattr(error, "param", None)
    if isinstance(error, EngineError):
        row = error_row(error)
        kind, status = row.type, row.status
    elif isinstance(found := getattr(error, "status_code", None), int):  # LiteLLM's own errors
        kind, status = getattr(error, "type", None) or "invalid_request_error", found
    else:
        return error
    message = getattr(error, "message", "")
    refusal: Exception = proxy_server.ProxyException(message=message, type=kind, param=param, code=status)
    return refusal


async def _engine_count(router: Any, request: Any) -> tuple[str, int] | None:
    """The model's key and the tokens. None: LiteLLM is to estimate. Raises as the request itself would."""
    noted, _ = _BODY.get(), _BODY.set(None)
    call_type, body = _body_of(request, noted)
    target = find_target({"model": request.model}, None)
    gateway = current_gateway()
    if not body or not target.is_ours_alone or gateway is None or not all(map(_is_ready(gateway), target.keys)):
        return None
    refuse_malformed(body, call_type)
    drop_token_ids()
    call = {
        **body,
        "model": request.model,
        "no-log": True,
        "num_retries": 0,
        "disable_fallbacks": True,
        "proxy_server_request": {"body": body},
    }
    with counting() as count:
        await getattr(router, _ROUTER_CALLS[call_type])(**call)
    return None if count.tokens is None else (target.keys[0], count.tokens)


def _is_ready(gateway: Any) -> Callable[[str], bool]:
    def is_ready(key: str) -> bool:
        model = gateway.model(key)
        return model is not None and model.state == "ready"

    return is_ready


def _body_of(request: Any, noted: tuple[str, Mapping[str, Any]] | None) -> tuple[str, dict[str, Any]]:
    """The route whose request is counted, and of its body what counts. Empty for a form that is none of ours."""
    if noted is not None and noted[1].get("model") == request.model:
        call_type, body = noted
    elif request.contents is not None:
        return "", {}
    elif request.messages is None:
        call_type, body = "atext_completion", {"prompt": request.prompt}
    else:
        call_type = "anthropic_messages" if _is_anthropics(request) else "acompletion"
        body = {"messages": request.messages, "tools": request.tools, "system": request.system}
    found = {name: body[name] for name in _FIELDS[call_type] if body.get(name) is not None}
    if call_type == "anthropic_messages":
        found["max_tokens"] = 1
    return call_type, found


def _is_anthropics(request: Any) -> bool:
    tools = request.tools or ()
    return request.system is not None or any(isinstance(tool, Mapping) and "input_schema" in tool for tool in tools)
