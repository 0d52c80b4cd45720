"""Which generation parameters a request may carry, and what a client hears of those it may not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.engine_settings import MemoryOptions, ModelOptions
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.request_params import PARAMETERS, READ_ELSEWHERE, flat_params, generation_params

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def refused(**params: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        generation_params(flat_params(params))
    return caught.value


def test_no_parameter_samples_from_the_models_own_distribution() -> None:
    assert generation_params({}) == GenerationParams()


def test_every_parameter_arrives_in_the_engines_own_terms() -> None:
    params = generation_params(
        {
            "max_tokens": 7,
            "min_tokens": 2,
            "stop": ["a", "b"],
            "banned_strings": "c",
            "temperature": 1,
            "top_k": 5,
            "top_p": 0.5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": -1,
            "frequency_penalty": 2,
            "seed": 11,
        }
    )
    assert params == GenerationParams(
        max_tokens=7,
        min_tokens=2,
        stop=("a", "b"),
        banned_strings=("c",),
        temperature=1.0,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        seed=11,
    )
    assert type(params.temperature) is float


def test_max_completion_tokens_wins_over_the_older_name() -> None:
    assert generation_params({"max_tokens": 3, "max_completion_tokens": 4}).max_tokens == 4


def test_null_is_absent() -> None:
    assert generation_params(flat_params({"max_tokens": None, "stop": None, "logit_bias": None})) == GenerationParams()


def test_top_k_minus_one_is_off() -> None:
    assert generation_params({"top_k": -1}).top_k == 0


def test_top_p_zero_is_greedy() -> None:
    params = generation_params({"top_p": 0})
    assert (params.top_p, params.top_k) == (1.0, 1)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"max_tokens": 0}, "an integer, at least 1; it is 0"),
        ({"max_tokens": "many"}, "an integer, at least 1, not a string"),
        ({"max_tokens": 2.5}, "not a number"),
        ({"max_tokens": True}, "not a boolean"),
        ({"max_tokens": 2**80}, "64 bits"),
        ({"temperature": -0.1}, "a number, at least 0 and at most 100; it is -0.1"),
        ({"temperature": float("nan")}, "finite"),
        ({"temperature": float("inf")}, "finite"),
        ({"temperature": False}, "not a boolean"),
        ({"top_p": 1.01}, "at least 0 and at most 1"),
        ({"top_p": [0.5]}, "not a list"),
        ({"min_p": -1}, "at least 0 and at most 1"),
        ({"top_k": -2}, "at least -1"),
        ({"repetition_penalty": 0}, "at least 0.01 and at most 100"),
        ({"presence_penalty": 2.1}, "at least -2 and at most 2"),
        ({"frequency_penalty": {}}, "not an object"),
        ({"seed": 2**63}, "an integer of 64 bits"),
        ({"seed": "1"}, "not a string"),
        ({"min_tokens": 5, "max_tokens": 4}, "greater than max_tokens"),
        ({"stop": ""}, "empty string"),
        ({"stop": ["a", ""]}, "empty string"),
        ({"stop": 3}, "a string or a list of strings, not an integer"),
        ({"stop": ["a", 3]}, "one of them is an integer"),
        ({"stop": ["a"] * 17}, "at most 16 strings; it holds 17"),
        ({"banned_strings": [None]}, "one of them is null"),
    ],
)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(params: dict[str, Any], says: str) -> None:
    error = refused(**params)
    assert error.param == next(iter(params))
    assert error.message.startswith(str(error.param))
    assert says in error.message


def test_a_refusal_does_not_quote_a_text() -> None:
    assert "sesame" not in refused(max_tokens="open sesame").message
    assert "sesame" not in refused(stop=["x", {"sesame": 1}]).message


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"suffix": "x"}, "remove it"),
        ({"functions": [{"name": "f"}]}, "use tools"),
        ({"function_call": {"name": "f"}}, "use tools and tool_choice"),
        ({"modalities": ["audio"]}, "remove it"),
        ({"audio": {"voice": "alloy"}}, "remove it"),
        ({"web_search_options": {}}, "remove it"),
    ],
)
def test_what_is_not_there_is_refused_by_name(params: dict[str, Any], says: str) -> None:
    error = refused(**params)
    assert error.param == next(iter(params))
    assert f"not supported by exllamav3 models; {says}" in error.message


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {}},
        {"function_call": "auto"},
        {"modalities": ["text"]},
        {"stream": True, "stream_options": {"include_usage": True}, "user": "u", "metadata": {"a": 1}},
        {"store": True, "service_tier": "auto", "max_retries": 0},
    ],
)
def test_what_asks_for_nothing_passes(params: dict[str, Any]) -> None:
    assert generation_params(flat_params(params)) == GenerationParams()


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert "Did you mean temperature?" in refused(temprature=1).message


@pytest.mark.parametrize(
    "name", [f.name for options in (ModelOptions, MemoryOptions) for f in dataclasses.fields(options)]
)
def test_a_setting_of_the_engine_has_no_effect(name: str) -> None:
    assert generation_params({name: "/etc"}) == GenerationParams()


def test_drop_params_drops_what_is_unknown_but_no_bad_value() -> None:
    dropped = {"temprature": 1, "suffix": "x", "model_dir": "/etc", "max_tokens": 2}
    assert generation_params(dropped, drop_unsupported=True) == GenerationParams(max_tokens=2)
    with pytest.raises(InvalidRequest):
        generation_params({"max_tokens": 0}, drop_unsupported=True)


def test_a_literal_extra_body_is_opened_and_the_body_wins() -> None:
    assert flat_params({"extra_body": {"top_k": 1, "min_p": 0.1}, "top_k": 2}) == {"top_k": 2, "min_p": 0.1}
    assert refused(extra_body=[1]).param == "extra_body"


@given(name=st.sampled_from(sorted(PARAMETERS - READ_ELSEWHERE)), value=JSON)
def test_any_json_value_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    refusal = None
    try:
        generation_params(flat_params({name: value}))
    except InvalidRequest as error:
        refusal = error
    assert refusal is None or refusal.param == name


@pytest.mark.parametrize(
    "harmless",
    [
        {"skip_special_tokens": True},
        {"add_generation_prompt": True},
        {"continue_final_message": False},
        {"include_reasoning": True},
        {"documents": []},
        {"cache_prompt": True},
        {"id_slot": -1},
    ],
)
def test_what_other_servers_clients_send_unasked_passes(harmless: dict[str, object]) -> None:
    assert generation_params(harmless) == GenerationParams()


def test_llama_cpps_name_for_the_limit_is_known() -> None:
    assert generation_params({"n_predict": 5}).max_tokens == 5
