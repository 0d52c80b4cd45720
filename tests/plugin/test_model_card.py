"""What a model's card says, and that LiteLLM's lists show it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import litellm
import pytest
from litellm.proxy.proxy_server import _enrich_model_info_with_litellm_data
from litellm.proxy.utils import create_model_info_response
from litellm.utils import custom_llm_setup

from exllamav3_adapters.contract import EngineInfo
from litellm_exllamav3.model_card import card_from_engine, card_from_settings
from litellm_exllamav3.provider import _publish, handler
from litellm_exllamav3.settings import ModelSettings

INFO = EngineInfo(
    model_key="m",
    engine="fake",
    context_length=4096,
    page_size=256,
    cache_tokens=8192,
    cache_fingerprint="f",
    tool_format="hermes",
    has_reasoning=True,
)
CONTEXT = ("max_tokens", "max_input_tokens", "max_output_tokens")


def settings(**model: Any) -> ModelSettings:
    return ModelSettings(engine="fake", model={"model_dir": "demo", **model})


def test_a_loaded_models_card_is_the_engines() -> None:
    card = card_from_engine(INFO)
    assert [card[name] for name in CONTEXT] == [4096] * 3
    assert (card["mode"], card["input_cost_per_token"], card["supports_vision"]) == ("chat", 0, False)
    for name in ("function_calling", "parallel_function_calling", "tool_choice", "reasoning", "response_schema"):
        assert card[f"supports_{name}"] is True


def test_a_model_whose_calls_nobody_reads_does_not_claim_them() -> None:
    card = card_from_engine(EngineInfo(**{**vars_of(INFO), "tool_format": None, "has_reasoning": False}))
    assert not any(card[f"supports_{name}"] for name in ("function_calling", "tool_choice", "reasoning"))


def test_a_model_that_reads_images_says_so_loaded_or_not() -> None:
    assert card_from_engine(EngineInfo(**{**vars_of(INFO), "reads_images": True}))["supports_vision"] is True
    assert card_from_settings(settings(vision=True))["supports_vision"] is True
    assert card_from_settings(settings())["supports_vision"] is False


def test_a_context_that_is_larger_than_the_cache_is_not_promised() -> None:
    card = card_from_engine(EngineInfo(**{**vars_of(INFO), "cache_tokens": 2048}))
    assert card["max_input_tokens"] == 2048


def test_before_the_load_only_what_is_configured_is_told() -> None:
    assert card_from_settings(settings(max_seq_len=512))["max_input_tokens"] == 512
    card = card_from_settings(settings())
    assert not any(name in card for name in (*CONTEXT, "supports_reasoning", "supports_function_calling"))


def vars_of(info: EngineInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in EngineInfo.__dataclass_fields__}


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Any:
    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    custom_llm_setup()
    model_list = [
        {"model_name": "plain", "litellm_params": {"model": "exllamav3/carded"}},
        {
            "model_name": "described",
            "litellm_params": {"model": "exllamav3/described"},
            "model_info": {"max_input_tokens": 77, "supports_vision": True, "input_cost_per_token": 0.5},
        },
    ]
    found = litellm.Router(model_list=model_list)
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(llm_router=found))
    return found


def shown(router: Any, alias: str) -> dict[str, Any]:
    """As `/model/info` has it."""
    deployment = router.get_model_list(alias)[0]
    info: dict[str, Any] = _enrich_model_info_with_litellm_data(model=dict(deployment), llm_router=router)["model_info"]
    return info


def test_litellms_lists_show_it_before_and_after_the_load(router: Any) -> None:
    _publish("carded", card_from_settings(settings(max_seq_len=512)))
    assert shown(router, "plain")["max_input_tokens"] == 512
    _publish("carded", card_from_engine(INFO))
    assert [shown(router, "plain")[name] for name in CONTEXT] == [4096] * 3
    assert shown(router, "plain")["supports_function_calling"] is True
    listed = create_model_info_response("plain", "openai", llm_router=router)
    assert (listed["mode"], listed["max_input_tokens"]) == ("chat", 4096)
    group = router.get_model_group_info("plain")
    assert (group.max_input_tokens, group.supports_reasoning, group.input_cost_per_token) == (4096, True, 0)


def test_what_the_operator_wrote_stays(router: Any) -> None:
    _publish("described", card_from_engine(INFO))
    info = shown(router, "described")
    assert (info["max_input_tokens"], info["supports_vision"], info["input_cost_per_token"]) == (77, True, 0.5)
    assert (info["max_output_tokens"], info["supports_reasoning"]) == (4096, True)
    assert router.get_model_group_info("described").max_input_tokens == 77
