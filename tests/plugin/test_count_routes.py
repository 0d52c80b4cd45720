"""The wrapped counting of a proxy. That counts are right is for tests/e2e/test_token_counts.py."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

import pytest

from litellm_exllamav3.count_routes import count_with_engines
from litellm_exllamav3.token_count import counting, wanted_count


def proxy(**attributes: Any) -> ModuleType:
    module = ModuleType("proxy")
    vars(module).update(attributes)
    return module


async def estimate(request: Any, call_endpoint: bool = False) -> str:
    return "an estimate"


async def test_a_proxy_is_wrapped_once() -> None:
    module = proxy(count_request_tokens=estimate)
    count_with_engines(module)
    wrapped = module.count_request_tokens
    assert wrapped is not estimate
    count_with_engines(module)
    assert module.count_request_tokens is wrapped


def test_a_litellm_without_the_function_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "litellm_exllamav3"):
        count_with_engines(proxy())
    assert "count_request_tokens" in caplog.text


def test_without_a_proxy_nothing_is_wrapped() -> None:
    count_with_engines(None)


def test_only_what_is_called_within_counts() -> None:
    assert wanted_count() is None
    with counting() as count:
        assert wanted_count() is count
    assert wanted_count() is None
