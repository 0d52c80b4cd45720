"""Every error of the contract has its place in the HTTP answer."""

from __future__ import annotations

import inspect

import pytest

from exllamav3_adapters import errors
from litellm_exllamav3.error_table import ERROR_TABLE, INTERNAL_ERROR, client_message, error_row, retry_after_header

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.EngineError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_table_is_complete(cls: type[errors.EngineError]) -> None:
    assert cls in ERROR_TABLE


def test_an_error_derived_later_takes_its_parents_row() -> None:
    class TemplateRefused(errors.InvalidRequest):
        pass

    assert error_row(TemplateRefused("no")) is ERROR_TABLE[errors.InvalidRequest]


def test_the_callers_faults_are_4xx_and_ours_5xx() -> None:
    for cls, row in ERROR_TABLE.items():
        callers = issubclass(cls, errors.InvalidRequest | errors.QueueFull | errors.GenerationTimeout)
        assert row.status // 100 == (4 if callers else 5), cls


def test_an_unexpected_error_is_a_500_that_does_not_repeat_its_text() -> None:
    error = KeyError("the user's prompt")
    assert error_row(error) is INTERNAL_ERROR
    assert "prompt" not in client_message(error, "tiny")
    assert "KeyError" in client_message(error, "tiny")


def test_a_full_queue_says_when_to_come_back_in_whole_seconds() -> None:
    assert retry_after_header(errors.QueueFull("full", 2.2)) == {"retry-after": "3"}
    assert retry_after_header(errors.QueueFull("full", 0)) == {"retry-after": "1"}
    assert retry_after_header(errors.JobFailed("no")) == {}
