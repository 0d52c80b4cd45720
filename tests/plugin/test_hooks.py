"""The pre-call hook as LiteLLM's proxy calls it, over a real store. What a client sees of it is for tests/e2e."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import litellm
import pytest
import yaml
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import ProxyException, UserAPIKeyAuth
from litellm.utils import custom_llm_setup

from litellm_exllamav3 import running_gateway
from litellm_exllamav3.capture import Capture
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.hooks import CaptureHook, capture
from litellm_exllamav3.provider import handler
from litellm_exllamav3.sighting import find_sighting, hook_forbids_keeping
from litellm_exllamav3.text_prompts import find_prompts

FAKE = {"engine": "fake", "load": "lazy", "model": {"model_dir": "demo"}}
MODELS = {"tiny": {**FAKE, "capture": {"min_tokens": 16}}, "private": {**FAKE, "capture": {"enabled": False}}}
MODEL_LIST = [
    {"model_name": "local", "litellm_params": {"model": "exllamav3/tiny"}},
    {"model_name": "private", "litellm_params": {"model": "exllamav3/private"}},
    {"model_name": "any/*", "litellm_params": {"model": "exllamav3/*"}},
    {"model_name": "mock", "litellm_params": {"model": "openai/mock", "api_key": "unused"}},
    {"model_name": "mixed", "litellm_params": {"model": "exllamav3/tiny"}},
    {"model_name": "mixed", "litellm_params": {"model": "openai/mock", "api_key": "unused"}},
]
PROVIDER = {"provider": "exllamav3", "custom_handler": "litellm_exllamav3.provider.handler"}
SYSTEM = "Rule: be kind. " * 20


@pytest.fixture
async def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Capture]:
    """What the hook counts into, with a router where the proxy keeps its own."""
    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    custom_llm_setup()
    router = litellm.Router(model_list=MODEL_LIST, model_group_alias={"nickname": "local"})
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(llm_router=router))
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "model_list": MODEL_LIST,
                "litellm_settings": {"custom_provider_map": [PROVIDER]},
                "exllamav3_settings": {"models": MODELS},
            }
        )
    )
    gateway = Gateway.open(config, {})
    running_gateway.start(gateway)
    for _ in range(1000):  # a gateway tells nobody when its store is open
        if gateway.capture is not None:
            break
        await asyncio.sleep(0.005)
    assert gateway.capture is not None
    yield gateway.capture
    await gateway.stop()


def body(alias: Any = "local", system: Any = SYSTEM, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
    return {"model": alias, "messages": messages, **fields}


async def call(data: dict[str, Any], call_type: str = "acompletion", **user: Any) -> None:
    user_api_key_dict = UserAPIKeyAuth(api_key="hash-of-a-key", **user)
    answer = await capture.async_pre_call_hook(user_api_key_dict, None, data, call_type)
    assert answer is None


def sightings(heads: Capture, model: str = "tiny") -> int:
    return heads.stats().models[model].sightings


def test_the_instances_own_class_defines_the_hook() -> None:
    assert "async_pre_call_hook" in vars(CaptureHook)
    assert isinstance(capture, CustomLogger)


@pytest.mark.parametrize("alias", ["local", "nickname", "any/tiny", "mixed"])
async def test_a_head_on_its_way_to_our_model_is_counted(heads: Capture, alias: str) -> None:
    await call(body(alias))
    assert sightings(heads) == 1
    sighting = find_sighting("tiny")
    assert sighting is not None
    assert sighting.digest
    assert find_sighting("private") is None


@pytest.mark.parametrize("alias", ["mock", "nonsense", "", None, 3, ["local"]])
async def test_a_head_on_its_way_elsewhere_is_not(heads: Capture, alias: Any) -> None:
    await call(body("local"))
    await call(body(alias))
    assert sightings(heads) == 1
    assert find_sighting("tiny") is None


async def test_nothing_is_edited(heads: Capture) -> None:
    data, same = (body(tools=[{"type": "function", "function": {"name": "f"}}], temperature=0) for _ in range(2))
    await call(data)
    assert sightings(heads) == 1
    assert data == same


async def test_the_owner_is_no_key(heads: Capture) -> None:
    await call(body())
    sighting = find_sighting("tiny")
    assert sighting is not None
    assert "hash-of-a-key" not in repr(sighting)


@pytest.mark.parametrize(
    "fields",
    [
        {"no-log": True},
        {"proxy_server_request": {"headers": {"x-litellm-enable-message-redaction": "true"}}},
        {"litellm_logging_obj": SimpleNamespace(standard_callback_dynamic_params={"turn_off_message_logging": "True"})},
    ],
    ids=["no-log", "header", "the key's callback settings"],
)
async def test_a_request_that_asks_for_it_is_not_counted(heads: Capture, fields: dict[str, Any]) -> None:
    await call(body(**fields))
    assert sightings(heads) == 0
    assert find_sighting("tiny") is None
    assert hook_forbids_keeping("tiny")
    await call(body())
    assert not hook_forbids_keeping("tiny")


@pytest.mark.parametrize(
    "user", [{"metadata": {"exllamav3_capture": False}}, {"team_metadata": {"exllamav3_capture": "no"}}]
)
async def test_a_key_or_team_that_opted_out_is_not_counted(heads: Capture, user: dict[str, Any]) -> None:
    await call(body(), **user)
    assert sightings(heads) == 0


async def test_with_message_logging_off_nothing_is_counted(heads: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "turn_off_message_logging", True)
    await call(body())
    assert sightings(heads) == 0


async def test_a_header_cannot_turn_capture_on_where_logging_is_off(
    heads: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litellm, "turn_off_message_logging", True)
    await call(body(proxy_server_request={"headers": {"litellm-disable-message-redaction": "true"}}))
    assert sightings(heads) == 0


async def test_a_model_whose_capture_is_off_counts_nothing(heads: Capture) -> None:
    await call(body("private"))
    assert sightings(heads, "private") == 0


ODD = [None, 3, [], "x", [None], [{"role": "system", "content": 3}], [{"content": {}}], [{"role": [], "content": [[]]}]]


@pytest.mark.parametrize("alias", ["local", "mixed", "mock"])
@pytest.mark.parametrize("call_type", ["acompletion", "anthropic_messages", "aresponses", "aembedding", "", None])
async def test_the_oddest_body_raises_nothing_but_a_refusal_of_ours(heads: Capture, alias: str, call_type: Any) -> None:
    for part in ODD:
        try:
            await call({"model": alias, "messages": part, "system": part, "input": part, "tools": part}, call_type)
        except ProxyException as refusal:
            assert (alias, refusal.code) == ("local", "400")  # noqa: PT017


async def test_a_router_that_fails_costs_no_request(heads: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(llm_router=object()))
    await call(body())
    assert sightings(heads) == 0


async def test_a_prompt_of_token_ids_is_kept_from_litellm_where_we_alone_answer(heads: Capture) -> None:
    data = {"model": "local", "prompt": [[1, 2], [3]]}
    await call(data, "atext_completion")
    assert data["prompt"] == ["<2 token ids>", "<1 token ids>"]
    assert find_prompts([]) == ((1, 2), (3,))
    for alias in ("mock", "mixed"):
        data = {"model": alias, "prompt": [1, 2]}
        await call(data, "atext_completion")
        assert data == {"model": alias, "prompt": [1, 2]}
        assert find_prompts([{"role": "user", "content": "x"}]) == ("x",)
    assert sightings(heads) == 0


@pytest.mark.usefixtures("heads")
async def test_a_malformed_prompt_is_refused_for_our_aliases_alone() -> None:
    with pytest.raises(ProxyException) as caught:
        await call({"model": "local", "prompt": {}}, "atext_completion")
    assert caught.value.code == "400"
    await call({"model": "mock", "prompt": {}}, "atext_completion")


@pytest.mark.usefixtures("heads")
async def test_only_a_text_completion_of_ours_has_its_stream_wrapped() -> None:
    stream, user = object(), UserAPIKeyAuth()
    for data, call_type in ((body(), "acompletion"), ({"model": "mock", "prompt": "x"}, "atext_completion")):
        await call(data, call_type)
        assert capture.async_post_call_streaming_iterator_hook(user, stream, {}) is stream
    await call({"model": "local", "prompt": "x"}, "atext_completion")
    assert capture.async_post_call_streaming_iterator_hook(user, stream, {}) is not stream


async def test_only_calls_to_our_deployments_are_changed() -> None:
    for model, provider in (("exllamav3/tiny", None), ("tiny", "exllamav3")):
        kwargs = {"model": model, "custom_llm_provider": provider, "messages": []}
        changed = await capture.async_pre_call_deployment_hook(kwargs, None)
        assert changed is not None
        assert "reasoning_effort" in changed.pop("allowed_openai_params")
        assert changed == kwargs
    for model in ("openai/mock", "", None, ["x"]):
        assert await capture.async_pre_call_deployment_hook({"model": model}, None) is None


MESSAGE = {"model": "local", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


async def close_model(key: str) -> None:
    gateway = running_gateway.current_gateway()
    assert gateway is not None
    await gateway.models[key].close()


@pytest.mark.usefixtures("heads")
async def test_a_model_that_cannot_answer_is_said_where_the_provider_could_not_say_it() -> None:
    await call(dict(MESSAGE), "anthropic_messages")
    await close_model("tiny")
    with pytest.raises(ProxyException) as caught:
        await call(dict(MESSAGE), "anthropic_messages")
    assert caught.value.code == "503"
    await call(dict(MESSAGE), "acompletion")  # the provider's own error has its status on this route


@pytest.mark.usefixtures("heads")
@pytest.mark.parametrize("fields", [{"fallbacks": ["mock"]}, {"model": "mixed"}])
async def test_nothing_is_refused_where_another_provider_may_answer(fields: dict[str, Any]) -> None:
    await close_model("tiny")
    await call({**MESSAGE, **fields}, "anthropic_messages")


@pytest.mark.usefixtures("heads")
@pytest.mark.parametrize("call_type", ["aembedding", "embedding", "arerank", "aspeech", "aimage_generation"])
async def test_a_call_that_no_model_of_ours_serves_is_refused_with_who_does(call_type: str) -> None:
    with pytest.raises(ProxyException, match="exllamav3/tiny cannot serve this call") as caught:
        await call({"model": "local", "input": "x"}, call_type)
    assert caught.value.code == "400"
    for fields in ({"model": "mock"}, {"model": "mixed"}, {"model": "local", "fallbacks": ["mock"]}):
        await call({"input": "x", **fields}, call_type)


RESPONSE = {"model": "local", "input": "hi"}


@pytest.mark.usefixtures("heads")
async def test_a_field_that_litellm_would_drop_is_refused_by_name() -> None:
    with pytest.raises(ProxyException) as caught:
        await call({**RESPONSE, "background": True}, "aresponses")
    assert (caught.value.code, caught.value.param) == ("400", "background")
    await call({**RESPONSE, "model": "mock", "background": True}, "aresponses")


@pytest.mark.usefixtures("heads")
async def test_drop_params_lets_it_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "drop_params", True)
    await call({**RESPONSE, "background": True}, "aresponses")


@pytest.mark.usefixtures("heads")
async def test_an_earlier_response_needs_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    follow_up = {**RESPONSE, "previous_response_id": "resp_1"}
    with pytest.raises(ProxyException, match="database"):
        await call(follow_up, "aresponses")
    monkeypatch.setattr(sys.modules["litellm.proxy.proxy_server"], "prisma_client", object(), raising=False)
    await call(follow_up, "aresponses")
