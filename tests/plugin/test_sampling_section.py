"""A model's own defaults for sampling: named and held to ranges as in a request."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from exllamav3_adapters.contract import GenerationParams
from litellm_exllamav3.request_params import ENGINE_KEYS, PARAMETERS, generation_params
from litellm_exllamav3.sampling_params import SAMPLING
from litellm_exllamav3.sampling_section import SamplingSection
from litellm_exllamav3.settings import ModelSettings

GOOD: dict[str, Any] = {"temperature": 0.7, "top_k": 40, "stop": "###", "logit_bias": {5: 1, "6": 2}, "seed": 3}


def section(**sampling: Any) -> SamplingSection:
    settings = {"engine": "fake", "model": {"model_dir": "demo"}, "sampling": sampling}
    return ModelSettings.model_validate(settings).sampling


def fault(**sampling: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        section(**sampling)
    (error,) = refused.value.errors()
    assert error["loc"][0] == "sampling"
    return str(error["msg"])


def test_it_has_the_parameters_of_a_request_and_no_other_name() -> None:
    assert SamplingSection.model_fields.keys() == SAMPLING.keys()


def test_nothing_set_leaves_the_models_own_distribution() -> None:
    assert section().defaults() == {}
    assert generation_params({}, defaults=section().defaults()) == GenerationParams()


def test_what_is_set_arrives_as_if_the_request_had_said_it() -> None:
    said = {**GOOD, "logit_bias": {"5": 1, "6": 2}}
    assert generation_params({}, defaults=section(**GOOD).defaults()) == generation_params(said)


def test_values_may_come_from_the_environment_as_text() -> None:
    texts = section(temperature="0.7", top_k="40", ignore_eos="true", banned_tokens="5,6")
    assert texts.defaults() == {"temperature": 0.7, "top_k": 40, "ignore_eos": True, "banned_tokens": (5, 6)}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", 101, "must be a number, at least 0 and at most 100; it is 101"),
        ("temperature", True, "should be a number"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", 0.5, "integer"),
        ("max_tokens", 0, "at least 1"),
        ("banned_tokens", [-1], "must hold token ids"),
        ("logit_bias", {5: 101}, "the bias of token 5 must be a number, at least -100 and at most 100"),
        ("stop", ["a", ""], "empty string"),
        ("rep_pen", 1.1, "Extra inputs"),
    ],
)
def test_a_value_that_a_request_may_not_have_is_refused(name: str, value: Any, says: str) -> None:
    assert says in fault(**{name: value})


def test_defaults_that_contradict_each_other_are_refused() -> None:
    assert "min_tokens is greater than max_tokens" in fault(min_tokens=5, max_tokens=4)


def test_a_request_cannot_set_the_section() -> None:
    assert "sampling" in ENGINE_KEYS - PARAMETERS
    assert generation_params({"sampling": {"temperature": 0.1}}) == GenerationParams()
