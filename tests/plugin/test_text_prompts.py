"""Prompts and parameters of /v1/completions as clients send them, and how token ids get past LiteLLM."""

from __future__ import annotations

from typing import Any

import pytest

from exllamav3_adapters.contract import GenerationParams, Grammar
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.text_params import TextParams, read_text_params
from litellm_exllamav3.text_prompts import MOST_PROMPTS, drop_token_ids, find_prompts, hold_token_ids, read_prompts


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("x", ("x",)),
        ("", ("",)),
        (["x", "y"], ("x", "y")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["x", [3]], ("x", (3,))),
    ],
)
def test_every_shape_of_openais_is_read(value: Any, prompts: Any) -> None:
    assert read_prompts(value) == prompts


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "prompt"),
        (3, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["x", None], "prompt[1]"),
        ([1, "x"], "prompt[0]"),
        ([[1, True]], "prompt[0]"),
        ([[2**32]], "prompt[0]"),
        ([[1.5]], "prompt[0]"),
        (["x"] * (MOST_PROMPTS + 1), "prompt"),
    ],
)
def test_anything_else_is_refused_with_its_place(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_prompts(value)
    assert caught.value.param == param


def as_litellm_does(prompt: Any) -> list[dict[str, Any]]:
    texts = [prompt] if isinstance(prompt, str) else prompt
    assert all(isinstance(text, str) for text in texts)  # it fails on anything else
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize("prompt", ["x", ["x", "y"], [1, 2], [[1, 2], [3]], ["x", [3]]])
def test_every_prompt_reaches_the_provider(prompt: Any) -> None:
    drop_token_ids()
    body = {"prompt": prompt}
    hold_token_ids(body)
    assert find_prompts(as_litellm_does(body["prompt"])) == read_prompts(prompt)


def test_texts_are_left_to_litellm_and_to_hooks_that_edit_them() -> None:
    drop_token_ids()
    body: dict[str, Any] = {"prompt": ["my key is 123"]}
    hold_token_ids(body)
    assert body == {"prompt": ["my key is 123"]}
    assert find_prompts([{"role": "user", "content": "my key is ***"}]) == ("my key is ***",)


def test_token_ids_lead_to_no_other_model() -> None:
    body: dict[str, Any] = {"prompt": [1, 2, 3]}
    hold_token_ids(body)
    assert body == {"prompt": ["<3 token ids>"], "disable_fallbacks": True}


def test_an_earlier_requests_token_ids_are_gone() -> None:
    hold_token_ids({"prompt": [1, 2, 3]})
    drop_token_ids()
    assert find_prompts([{"role": "user", "content": "<3 token ids>"}]) == ("<3 token ids>",)


def test_the_parameters_are_read() -> None:
    assert read_text_params({}) == TextParams()
    params = read_text_params({"n": 2, "best_of": 2, "logprobs": 0, "regex": "a+", "add_special_tokens": False})
    assert (params.num_choices, params.starts_text) == (2, False)
    of_generation = params.of_generation(GenerationParams(temperature=0))
    assert of_generation == GenerationParams(
        temperature=0, top_logprobs=0, grammar=Grammar(kind="regex", source="a+"), chat=None
    )


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"tools": []}, "tools"),
        ({"chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 6}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"add_bos_token": "yes"}, "add_bos_token"),
    ],
)
def test_a_bad_parameter_is_refused(params: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_text_params(params)
    assert caught.value.param == param


def test_what_belongs_to_chats_is_dropped_where_the_operator_wants_that() -> None:
    assert read_text_params({"tools": [], "reasoning_effort": "low"}, drop_unsupported=True) == TextParams()
