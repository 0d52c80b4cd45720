"""The table of request fields against LiteLLM's own way from each route to the provider, in this process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import litellm
import pytest
import yaml
from litellm.utils import custom_llm_setup

from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3 import running_gateway
from litellm_exllamav3.deployment_params import with_allowed_params
from litellm_exllamav3.field_check import FieldCheck
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.provider import handler
from litellm_exllamav3.request_fields import ROUTES, Treatment

SETTINGS = {
    "model_list": [{"model_name": "local", "litellm_params": {"model": "exllamav3/tiny"}}],
    "litellm_settings": {
        "custom_provider_map": [{"provider": "exllamav3", "custom_handler": "litellm_exllamav3.provider.handler"}]
    },
    "exllamav3_settings": {
        "models": {"tiny": {"engine": "fake", "load": "lazy", "model": {"model_dir": "demo", "tool_format": "hermes"}}}
    },
}
MODEL = "exllamav3/tiny"
SAY = "say: {}"
SCHEMA = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}

REQUIRED: dict[str, dict[str, Any]] = {
    "acompletion": {"messages": [{"role": "user", "content": SAY}]},
    "aresponses": {"input": SAY},
    "anthropic_messages": {"messages": [{"role": "user", "content": SAY}], "max_tokens": 50},
}
CHAT_TOOL = {"type": "function", "function": {"name": "add"}}
RESPONSES_TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}
ANTHROPIC_TOOL = {"name": "add", "input_schema": {"type": "object"}}

VALUES: dict[str, dict[str, Any]] = {
    "acompletion": {
        "max_completion_tokens": 5,
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "logit_bias": {"5": 1},
        "seed": 1,
        "stop": ["a"],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "tools": [CHAT_TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "response_format": {"type": "json_object"},
        "stream": False,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "verbosity": "low",
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "wav"},
        "functions": [{"name": "add"}],
        "function_call": {"name": "add"},
        "web_search_options": {},
        "moderation": {"model": "omni"},
        "store": True,
        "context_management": [{"type": "compaction"}],
        "prediction": {"type": "content", "content": "a"},
        "prompt_cache_key": "a",
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_retention": "24h",
        "service_tier": "flex",
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "u",
    },
    "aresponses": {
        "instructions": "i",
        "max_output_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.5,
        "stream": False,
        "tools": [RESPONSES_TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "prompt": {"id": "pmpt_1"},
        "background": True,
        "background_options": {"completion_window": "2h"},
        "top_logprobs": 3,
        "moderation": {"model": "omni"},
        "context_management": [{"type": "compaction", "compact_threshold": 2000}],
        "truncation": "auto",
        "store": True,
        "include": ["reasoning.encrypted_content"],
        "max_tool_calls": 3,
        "image": {"context_compression": "auto"},
        "stream_options": {"include_obfuscation": False},
        "access_programs": {"cyber": "standard"},
        "prompt_cache_key": "a",
        "prompt_cache_options": {"mode": "implicit"},
        "prompt_cache_retention": "24h",
        "service_tier": "auto",
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "u",
    },
    "anthropic_messages": {
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "stop_sequences": ["zz"],
        "stream": False,
        "tools": [ANTHROPIC_TOOL],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "low", "format": SCHEMA},
        "output_format": SCHEMA,
        "container": {"id": "c"},
        "mcp_servers": [{"type": "url", "url": "http://localhost", "name": "n"}],
        "context_management": {"edits": []},
        "speed": "fast",
        "cache_control": {"type": "ephemeral"},
        "service_tier": "auto",
        "inference_geo": "us",
        "diagnostics": {"previous_message_id": "m"},
        "metadata": {"user_id": "u"},
        "user_profile_id": "u",
        "workspace_id": "w",
    },
}
"""A value of each field that asks for something."""
BESIDE: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}}
TOOLS = {
    "acompletion": [CHAT_TOOL],
    "aresponses": [RESPONSES_TOOL],
    "anthropic_messages": [ANTHROPIC_TOOL],
}
CALLS: dict[str, Callable[..., Any]] = {
    "acompletion": litellm.acompletion,
    "aresponses": litellm.aresponses,
    "anthropic_messages": litellm.anthropic.messages.acreate,
}


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async def load(name: str, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        return FakeEngine(settings)

    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    custom_llm_setup()
    # The messages route asks the proxy for its router, and would import all of it.
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(llm_router=None))
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(SETTINGS))
    gateway = Gateway.open(config, {}, load_engine=load)
    running_gateway.start(gateway)
    yield
    await gateway.stop()


async def serve(call_type: str, name: str) -> Any:
    """As the hook and LiteLLM would, with what the hook adds."""
    body: dict[str, Any] = {**REQUIRED[call_type], name: VALUES[call_type][name]}
    if call_type == "acompletion":
        body |= BESIDE.get(name, {})
    if name in ("tool_choice", "parallel_tool_calls"):
        body["tools"] = TOOLS[call_type]
    FieldCheck().check(body, call_type)
    return await CALLS[call_type](**with_allowed_params({"model": MODEL, **body}))


@pytest.mark.parametrize("call_type", REQUIRED)
def test_every_field_has_a_value_to_try(call_type: str) -> None:
    named = {field.name for field in ROUTES[call_type].fields}
    assert set(VALUES[call_type]) == named - {"model", *REQUIRED[call_type]}


def fields(call_type: str, *, refused: bool) -> list[str]:
    return [
        field.name
        for field in ROUTES[call_type].fields
        if (field.treatment is Treatment.REFUSED) is refused and field.name in VALUES[call_type]
    ]


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("call_type", REQUIRED)
async def test_a_field_that_is_not_refused_is_served(call_type: str) -> None:
    for name in fields(call_type, refused=False):
        try:
            await serve(call_type, name)
        except (litellm.BadRequestError, InvalidRequest) as error:
            pytest.fail(f"{name}: {error}")


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize("call_type", REQUIRED)
async def test_a_refused_field_is_refused_by_name(call_type: str) -> None:
    named = []
    for name in fields(call_type, refused=True):
        with pytest.raises((litellm.BadRequestError, InvalidRequest)) as caught:
            await serve(call_type, name)
        named.append(caught.value.param)
    assert named == fields(call_type, refused=True)
