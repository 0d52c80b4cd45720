"""What a request may sample with: names, ranges, other engines' names, and how it meets a model's defaults."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from exllamav3_adapters.contract import GenerationParams
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.request_params import flat_params, generation_params
from litellm_exllamav3.sampling_params import ALIASES, OTHER_SAMPLERS, SAMPLING

NOT_SAMPLED = {
    "grammar": "of `response_format` and its like (`output_grammar.py`)",
    "chat": "of tools and reasoning (`answer_params.py`)",
    "top_logprobs": "of `logprobs` (`answer_params.py`, `text_params.py`)",
}
"""Fields of `GenerationParams` that no sampling parameter sets -> what does."""

EVERYTHING: dict[str, Any] = {
    "max_tokens": 40,
    "min_tokens": 4,
    "stop": ["a"],
    "banned_strings": ["b"],
    "banned_tokens": [3, 4],
    "ignore_eos": True,
    "temperature": 0.5,
    "temperature_last": True,
    "top_k": 7,
    "top_p": 0.9,
    "min_p": 0.05,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "adaptive_target": 0.6,
    "adaptive_decay": 0.5,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.4,
    "penalty_range": 256,
    "repetition_decay": 64,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_range": 512,
    "dry_sequence_breakers": ["\n"],
    "logit_bias": {"5": 1, "6": -100.0},
    "seed": 9,
}
SENT_AS = {"max_completion_tokens": 40, "min_length": 4, "stop_sequence": ["a"], "bad_words": ["b"]}
"""Aliases with values, beside those that take their parameter's."""


def read(params: dict[str, Any], **options: Any) -> GenerationParams:
    return generation_params(flat_params(params), **options)


def refused(**params: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(params)
    return caught.value


def test_every_parameter_has_its_effect() -> None:
    assert read(EVERYTHING) == GenerationParams(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in EVERYTHING.items()}
        | {"logit_bias": {5: 1.0, 6: -100.0}}
    )
    for name, value in EVERYTHING.items():
        assert getattr(read({name: value}), name) != getattr(GenerationParams(), name)


def test_every_field_of_the_contract_can_be_asked_for() -> None:
    fields = {field.name for field in dataclasses.fields(GenerationParams)}
    assert fields - NOT_SAMPLED.keys() == SAMPLING.keys() == EVERYTHING.keys()
    assert NOT_SAMPLED.keys() <= fields


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_another_engines_name_does_the_same(alias: str) -> None:
    name = ALIASES[alias]
    assert read({alias: SENT_AS.get(alias, EVERYTHING[name])}) == read({name: EVERYTHING[name]})


def test_two_names_may_say_the_same_but_nothing_else() -> None:
    assert read({"rep_pen": 2, "repetition_penalty": 2.0}).repetition_penalty == 2.0
    assert read({"stop_sequence": "a", "stop": ["a"]}).stop == ("a",)
    assert refused(repetition_penalty=1.2, rep_pen=1.1).param == "rep_pen"
    assert (
        "rep_pen_range and repetition_range are one parameter" in refused(repetition_range=5, rep_pen_range=6).message
    )


def test_a_refusal_names_what_the_client_sent() -> None:
    error = refused(rep_pen="high")
    assert error.param == "rep_pen"
    assert error.message.startswith("rep_pen must be a number")


@pytest.mark.parametrize(
    ("params", "field", "value"),
    [
        ({"top_k": -1}, "top_k", 0),
        ({"penalty_range": -1}, "penalty_range", None),
        ({"penalty_range": 0}, "penalty_range", 0),
        ({"dry_range": -1}, "dry_range", 0),
        ({"adaptive_target": -1}, "adaptive_target", 1.0),
        ({"top_p": 0}, "top_k", 1),
        ({"dry_sequence_breakers": []}, "dry_sequence_breakers", ()),
    ],
)
def test_what_means_off_or_all_elsewhere_means_it_here(params: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(params), field) == value


@pytest.mark.parametrize(
    ("sent", "breakers"),
    [
        (json.dumps(["\n", ":", '"', "*"]), ("\n", ":", '"', "*")),
        ('"\\n", ":"', ("\n", ":")),
        ("\n", ("\n",)),
        ("[", ("[",)),
        ('"', ('"',)),
        (["."], (".",)),
    ],
)
def test_breakers_may_be_a_list_its_json_text_or_one_text(sent: Any, breakers: tuple[str, ...]) -> None:
    assert read({"dry_sequence_breakers": sent}).dry_sequence_breakers == breakers


def test_banned_tokens_may_be_text_with_commas() -> None:
    assert read({"custom_token_bans": "5, 6,7"}).banned_tokens == (5, 6, 7)
    assert read({"custom_token_bans": ""}).banned_tokens == ()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"temperature": 100.5}, "at most 100; it is 100.5"),
        ({"xtc_probability": 1.1}, "at least 0 and at most 1"),
        ({"xtc_threshold": "0.1"}, "not a string"),
        ({"adaptive_target": 1.5}, "at least -1 and at most 1"),
        ({"adaptive_decay": 1}, "at most 0.99"),
        ({"repetition_penalty": 1e-40}, "at least 0.01"),
        ({"penalty_range": -2}, "at least -1"),
        ({"repetition_decay": 0.5}, "an integer, at least 0, not a number"),
        ({"dry_multiplier": -1}, "at least 0"),
        ({"dry_base": 0.5}, "at least 1"),
        ({"dry_allowed_length": True}, "not a boolean"),
        ({"dry_range": -2}, "at least -1"),
        ({"dry_sequence_breakers": [1]}, "strings only; one of them is an integer"),
        ({"dry_sequence_breakers": '["a"'}, "JSON text of a list"),
        ({"dry_sequence_breakers": "[1]"}, "strings only"),
        ({"dry_sequence_breakers": "[" * 100_000}, "JSON text of a list"),
        ({"ignore_eos": 1}, "true or false, not an integer"),
        ({"temperature_last": "yes"}, "true or false, not a string"),
        ({"banned_tokens": [1, -1]}, "integers from 0 to 2147483647"),
        ({"banned_tokens": [2**31]}, "integers from 0 to 2147483647"),
        ({"banned_tokens": ["5"]}, "one of them is a string"),
        ({"banned_tokens": "5,x"}, "one of them is a string"),
        ({"banned_tokens": 5}, "a list of token ids, not an integer"),
        ({"banned_tokens": [0] * 65_537}, "at most 65536 token ids; it holds 65537"),
        ({"logit_bias": [[5, 1]]}, "an object of token ids, not a list"),
        ({"logit_bias": {"the": 1}}, "token ids; one of them is a string"),
        ({"logit_bias": {"-5": 1}}, "token ids; one of them is a string"),
        ({"logit_bias": {"٣": 1}}, "token ids; one of them is a string"),
        ({"logit_bias": {"5": 100.5}}, "the bias of token 5 must be a number, at least -100 and at most 100"),
        ({"logit_bias": {"5": None}}, "the bias of token 5 must be a number"),
        ({"logit_bias": {str(token): 1 for token in range(65_537)}}, "at most 65536 token ids"),
    ],
    ids=str,
)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(params: dict[str, Any], says: str) -> None:
    error = refused(**params)
    assert error.param == next(iter(params))
    assert error.message.startswith(str(error.param))
    assert says in error.message


def test_a_sampler_of_another_engine_passes_only_where_it_is_off() -> None:
    for name, off in OTHER_SAMPLERS.items():
        for value in (*off, []):
            assert read({name: value}) == GenerationParams()
        error = refused(**{name: 0.37})
        assert (error.param, error.message) == (name, f"{name} is no sampler of exllamav3; remove it.")
    assert read({"token_healing": False, "use_beam_search": False}) == GenerationParams()
    assert refused(token_healing=True).param == "token_healing"


def test_dropped_parameters_are_no_samplers() -> None:
    assert read({"mirostat_mode": 2, "top_k": 3}, drop_unsupported=True) == GenerationParams(top_k=3)


def test_a_default_holds_where_the_request_names_nothing() -> None:
    defaults = {"temperature": 0.6, "min_p": 0.1, "max_tokens": 100}
    assert read({"min_p": 0.0}, defaults=defaults) == GenerationParams(temperature=0.6, min_p=0.0, max_tokens=100)
    assert read({"temperature": None}, defaults=defaults).temperature == 0.6


def test_another_name_overrides_a_default_too() -> None:
    assert read({"rep_pen": 1.0}, defaults={"repetition_penalty": 1.2}).repetition_penalty == 1.0
    assert read({"max_completion_tokens": 5}, defaults={"max_tokens": 100}).max_tokens == 5


def test_a_request_undoes_a_greedy_default() -> None:
    assert read({"top_p": 0.9}, defaults={"top_p": 0.0}) == GenerationParams(top_p=0.9)
    assert read({}, defaults={"top_p": 0.0}) == GenerationParams(top_k=1)


def test_a_default_gives_way_where_it_contradicts_the_request() -> None:
    assert read({"max_tokens": 5}, defaults={"min_tokens": 10}) == GenerationParams(max_tokens=5, min_tokens=5)
    assert read({"min_tokens": 50}, defaults={"max_tokens": 10}) == GenerationParams(max_tokens=50, min_tokens=50)
    assert refused(min_tokens=5, max_tokens=4).param == "min_tokens"
