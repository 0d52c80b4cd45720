"""The table of request fields: complete by the installed clients, true by the code, and what the README shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import anthropic.types.message_create_params
import openai.types.chat.completion_create_params
import openai.types.completion_create_params
import openai.types.responses.response_create_params
import pytest
from typer.testing import CliRunner

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.answer_params import read_answer_params
from litellm_exllamav3.chat_request import read_chat
from litellm_exllamav3.cli import app
from litellm_exllamav3.field_check import FieldCheck
from litellm_exllamav3.request_fields import ROUTES, Field, Treatment
from litellm_exllamav3.request_fields_reference import request_fields_reference
from litellm_exllamav3.request_params import flat_params, generation_params
from litellm_exllamav3.text_params import read_text_params, sampling_params

ROOT = Path(__file__).parents[2]

CLIENTS = {
    "acompletion": (
        openai.types.chat.completion_create_params.CompletionCreateParamsNonStreaming,
        openai.types.chat.completion_create_params.CompletionCreateParamsStreaming,
    ),
    "atext_completion": (
        openai.types.completion_create_params.CompletionCreateParamsNonStreaming,
        openai.types.completion_create_params.CompletionCreateParamsStreaming,
    ),
    "aresponses": (
        openai.types.responses.response_create_params.ResponseCreateParamsNonStreaming,
        openai.types.responses.response_create_params.ResponseCreateParamsStreaming,
    ),
    "anthropic_messages": (
        anthropic.types.message_create_params.MessageCreateParamsNonStreaming,
        anthropic.types.message_create_params.MessageCreateParamsStreaming,
    ),
}

ADD = {"type": "function", "function": {"name": "add"}}
CHAT_VALUES: dict[str, Any] = {
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
    "top_logprobs": 0,
    "tools": [ADD],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "stream": True,
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
}
"""A value of each chat field that asks for something."""
TEXT_VALUES = {name: CHAT_VALUES[name] for name in CHAT_VALUES if name not in ("logprobs", "top_logprobs")} | {
    "best_of": 1,
    "logprobs": 3,
    "echo": True,
    "suffix": "a",
}
OF_THE_CHAT_ITSELF = {"model", "messages", "stream", "stream_options", "top_logprobs"}
"""Fields whose effect is not in what is compared here; `top_logprobs` has it with `logprobs` alone."""
NEEDS_TOOLS = {"tool_choice", "parallel_tool_calls"}


def names(call_type: str) -> list[str]:
    return [field.name for field in ROUTES[call_type].fields]


def fields(call_type: str, *treatments: Treatment) -> Iterator[Field]:
    return (field for field in ROUTES[call_type].fields if field.treatment in treatments)


@pytest.mark.parametrize("call_type", CLIENTS)
def test_every_field_of_the_installed_clients_is_in_the_table(call_type: str) -> None:
    known = {name for params in CLIENTS[call_type] for name in get_type_hints(params)}
    assert known - set(names(call_type)) == set()


@pytest.mark.parametrize("call_type", CLIENTS)
def test_no_field_is_there_twice(call_type: str) -> None:
    assert len(names(call_type)) == len(set(names(call_type)))


def test_every_chat_field_has_a_value_to_try() -> None:
    assert set(CHAT_VALUES) == set(names("acompletion")) - {"model", "messages"}


def read(params: dict[str, Any]) -> Any:
    flat = flat_params(params)
    chat = read_chat([{"role": "user", "content": "hi"}], flat)
    answer = read_answer_params(flat, chat)
    return answer.of_generation(generation_params(flat)), answer.num_choices, answer.of_chat(chat)


@pytest.mark.parametrize("name", sorted(CHAT_VALUES))
def test_what_becomes_of_a_chat_field_is_what_the_table_says(name: str) -> None:
    (field,) = [field for field in ROUTES["acompletion"].fields if field.name == name]
    plain = {"tools": [ADD]} if name in NEEDS_TOOLS else {}
    asked = plain | {name: CHAT_VALUES[name]}
    assert field.asks(CHAT_VALUES[name])
    if field.treatment is Treatment.REFUSED:
        with pytest.raises(InvalidRequest) as caught:
            read(asked)
        assert caught.value.param == name
    elif field.treatment in (Treatment.IGNORED, Treatment.WARNED):
        assert read(asked) == read(plain)
    elif name not in OF_THE_CHAT_ITSELF:
        assert read(asked) != read(plain)
    else:
        read(asked)


@pytest.mark.parametrize("field", ROUTES["atext_completion"].fields, ids=lambda field: field.name)
def test_what_becomes_of_a_text_completions_field_is_what_the_table_says(field: Field) -> None:
    if field.name in ("model", "prompt"):
        return
    flat = {field.name: TEXT_VALUES[field.name]}
    refusal = None
    found = None
    try:
        text = read_text_params(flat)
        found = text.of_generation(generation_params(sampling_params(flat))), text.num_choices
    except InvalidRequest as error:
        refusal = error.param
    assert refusal == (field.name if field.treatment is Treatment.REFUSED else None)
    has_effect = field.treatment is Treatment.SUPPORTED and field.name not in ("stream", "stream_options", "best_of")
    assert refusal is not None or (found != (GenerationParams(), 1)) is has_effect


@pytest.mark.parametrize("field", list(fields("acompletion", Treatment.REFUSED)), ids=lambda field: field.name)
def test_a_value_that_asks_for_nothing_passes(field: Field) -> None:
    for value in field.asks_for_nothing:
        assert not field.asks(value)
        assert read({field.name: value}) == read({})


@pytest.mark.parametrize("call_type", ["aresponses", "anthropic_messages"])
def test_what_litellm_would_drop_is_refused_before_it_does(call_type: str) -> None:
    for field in fields(call_type, Treatment.REFUSED):
        with pytest.raises(InvalidRequest, match="not supported by exllamav3 models") as caught:
            FieldCheck().check({field.name: {"anything": 1}}, call_type)
        assert caught.value.param == field.name


def test_a_refused_field_that_asks_for_nothing_passes_before_litellm_too() -> None:
    FieldCheck().check({"background": False, "conversation": None, "top_logprobs": 0}, "aresponses")


def test_a_refusal_says_what_passes() -> None:
    with pytest.raises(InvalidRequest, match=r"background \(other than false\) is not supported"):
        FieldCheck().check({"background": True}, "aresponses")


def test_an_earlier_response_is_found_where_there_is_a_database() -> None:
    body = {"previous_response_id": "resp_1"}
    FieldCheck().check(body, "aresponses", has_database=True)
    with pytest.raises(InvalidRequest, match="database"):
        FieldCheck().check(body, "aresponses")


def test_other_calls_have_no_fields() -> None:
    FieldCheck().check({"background": True}, "aembedding")


def test_what_is_ignored_with_a_warning_is_told_once_for_a_route(caplog: pytest.LogCaptureFixture) -> None:
    check = FieldCheck()
    with caplog.at_level(logging.WARNING, "litellm_exllamav3"):
        for _ in range(2):
            check.check({"context_management": {"edits": ["secret"]}}, "anthropic_messages")
            check.check({"store": True}, "acompletion")
        check.check({"store": False}, "acompletion")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "/v1/messages",
        "/v1/chat/completions",
    ]
    assert "secret" not in caplog.text


def test_the_readme_holds_the_table() -> None:
    readme = (ROOT / "README.md").read_text()
    _, _, rest = readme.partition("<!-- request-fields -->")
    section, end, _ = rest.partition("<!-- /request-fields -->")
    assert end
    assert section.strip() == request_fields_reference().strip(), "run `litellm-exllamav3 request-fields` and paste"


def test_the_table_is_printed() -> None:
    assert CliRunner().invoke(app, ["request-fields"]).stdout == request_fields_reference()
