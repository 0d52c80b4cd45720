"""Where an alias leads; what the hook makes of it is in test_hooks.py."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import litellm
import pytest
from litellm.utils import custom_llm_setup

from litellm_exllamav3.alias_target import Target, find_target, model_key
from litellm_exllamav3.provider import handler


@pytest.fixture(autouse=True)
def router(monkeypatch: pytest.MonkeyPatch) -> None:
    def deployment(alias: str, model: str, **info: Any) -> dict[str, Any]:
        params = {"model": model, "api_key": "unused"}
        return {"model_name": alias, "litellm_params": params, "model_info": info}

    model_list = [
        deployment("ours", "exllamav3/a"),
        deployment("two", "exllamav3/a"),
        deployment("two", "exllamav3/b"),
        deployment("mixed", "exllamav3/a"),
        deployment("mixed", "openai/b"),
        deployment("theirs", "openai/b"),
    ]
    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    custom_llm_setup()
    found = litellm.Router(model_list=model_list)
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(llm_router=found))


@pytest.mark.parametrize(
    ("alias", "target"),
    [
        ("ours", Target(keys=("a",), is_ours_alone=True)),
        ("two", Target(keys=("a", "b"), is_ours_alone=True)),
        ("mixed", Target(keys=("a",))),
        ("theirs", Target()),
        ("nowhere", Target()),
        (None, Target()),
        (["ours"], Target()),
    ],
)
def test_an_alias_leads_where_its_deployments_do(alias: Any, target: Target) -> None:
    assert find_target({"model": alias}, None) == target


def test_a_request_may_bring_fallbacks_of_its_own() -> None:
    assert find_target({"model": "ours", "fallbacks": ["theirs"]}, None).has_fallbacks


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"model": "exllamav3/a"}, "a"),
        ({"model": "a", "custom_llm_provider": "exllamav3"}, "a"),
        ({"model": "a"}, None),
        ({"model": "openai/exllamav3/a"}, None),
        ({}, None),
        ({"model": 3}, None),
    ],
)
def test_a_deployment_of_ours_is_told_by_its_provider(params: dict[str, Any], key: str | None) -> None:
    assert model_key(params) == key
