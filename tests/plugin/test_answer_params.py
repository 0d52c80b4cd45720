"""What a request asks of its answer beyond the sampling: tools, grammar, reasoning, logprobs, copies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from exllamav3_adapters.contract import ChatAnswer, GenerationParams, Grammar, ToolUse
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.answer_params import ANSWER_KEYS, AnswerParams, read_answer_params
from litellm_exllamav3.chat_request import read_chat
from litellm_exllamav3.request_params import flat_params

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": NOTHING}}
LOOK = {"type": "function", "function": {"name": "look", "description": "", "parameters": NOTHING}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def read(**params: Any) -> AnswerParams:
    flat = flat_params(params)
    return read_answer_params(flat, read_chat([{"role": "user", "content": "hi"}], flat))


def refused(**params: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(**params)
    return caught.value


def tool_use(tool_choice: Any = None, **params: Any) -> ToolUse:
    found = read(tools=[ADD, LOOK], tool_choice=tool_choice, **params).chat.tool_use
    assert found is not None
    return found


def test_a_plain_chat_asks_for_one_free_answer() -> None:
    assert read() == AnswerParams(chat=ChatAnswer())


def test_all_of_it_lands_in_the_generations_parameters() -> None:
    answer = read(tools=[LOOK], logprobs=True, top_logprobs=3, response_format={"type": "json_object"})
    params = answer.of_generation(GenerationParams(max_tokens=5))
    assert (params.max_tokens, params.top_logprobs, params.chat) == (5, 3, answer.chat)
    assert params.grammar == Grammar(kind="json_schema", source='{"type":"object"}')


# Tools


def test_tools_without_a_choice_may_be_called() -> None:
    assert tool_use() == ToolUse(tools=[ADD, LOOK], choice="auto", parallel=True)


@pytest.mark.parametrize(
    ("sent", "choice", "function"),
    [
        ("none", "none", None),
        ("auto", "auto", None),
        ("required", "required", None),
        ("any", "required", None),
        ({"type": "any"}, "required", None),
        ({"type": "auto"}, "auto", None),
        ({"type": "function", "function": {"name": "add"}}, "required", "add"),
        ({"type": "function", "name": "add"}, "required", "add"),
        ({"type": "tool", "name": "add"}, "required", "add"),
    ],
)
def test_a_choice_is_read_in_every_routes_shape(sent: Any, choice: str, function: str | None) -> None:
    found = tool_use(sent)
    assert (found.choice, found.function) == (choice, function)


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [LOOK]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
    ],
)
def test_allowed_tools_leave_only_those(sent: Any) -> None:
    answer = read(tools=[ADD, LOOK], tool_choice=sent)
    assert answer.chat.tool_use == ToolUse(tools=[LOOK], choice="required")
    chat = read_chat([{"role": "user", "content": "hi"}], {"tools": [ADD, LOOK]})
    assert answer.of_chat(chat).tools == [LOOK]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"tool_choice": "required"}, "send tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "send tools"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "the tool 'add'"),
        (
            {
                "tools": [LOOK],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ADD]}},
            },
            "the tool 'add'",
        ),
        ({"tools": [LOOK], "tool_choice": "always"}, "none, auto, required"),
        ({"tools": [LOOK], "tool_choice": 3}, "not an integer"),
        ({"tools": [LOOK], "tool_choice": {"type": "function"}}, "none, auto, required"),
        ({"tools": [LOOK], "tool_choice": {"type": "custom", "name": "look"}}, "none, auto, required"),
        ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "at least one tool"),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(params: dict[str, Any], says: str) -> None:
    error = refused(**params)
    assert error.param == "tool_choice"
    assert says in error.message


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_without_tools_there_is_no_call_to_look_for(choice: str | None) -> None:
    assert read(tool_choice=choice, tools=[]).chat.tool_use is None


def test_one_call_at_most_is_asked_for_in_openais_way_and_in_anthropics() -> None:
    assert tool_use(parallel_tool_calls=False).parallel is False
    assert tool_use({"type": "auto", "disable_parallel_tool_use": True}).parallel is False
    assert refused(parallel_tool_calls="no").param == "parallel_tool_calls"


# Grammar


@pytest.mark.parametrize(
    ("params", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
            "json_schema",
            SCHEMA,
        ),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA),
        ({"extra_body": {"guided_json": json.dumps(SCHEMA)}}, "json_schema", SCHEMA),
        ({"regex": "a+"}, "regex", "a+"),
        ({"regex_pattern": "a+"}, "regex", "a+"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"grammar": "start: X"}, "lark", "start: X"),
        ({"grammar_string": "start: X"}, "lark", "start: X"),
        ({"guided_grammar": "start: X"}, "lark", "start: X"),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"grammar": "start: X"}}, "lark", "start: X"),
        ({"structured_outputs": {"choice": ["a"]}}, "lark", 'start: "a"'),
        ({"guided_choice": ["yes", 'a "b"']}, "lark", 'start: "yes" | "a \\"b\\""'),
    ],
)
def test_a_constraint_is_read_under_every_name(params: dict[str, Any], kind: str, source: Any) -> None:
    grammar = read(**params).grammar
    assert grammar is not None
    assert grammar.kind == kind
    assert (json.loads(grammar.source) if kind == "json_schema" else grammar.source) == source


def test_text_is_no_constraint() -> None:
    assert read(response_format={"type": "text"}, regex="a").grammar == Grammar(kind="regex", source="a")


def test_a_pydantic_model_of_a_library_call_is_its_schema() -> None:
    class Point(BaseModel):
        x: int

    grammar = read(response_format=Point).grammar
    assert grammar is not None
    assert json.loads(grammar.source)["required"] == ["x"]


@pytest.mark.parametrize(
    ("params", "param", "says"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "the schema is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "the schema is missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema.schema",
            "not a list",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "one of text, json_object, json_schema"),
        ({"response_format": "json"}, "response_format", "not a string"),
        ({"json_schema": "{"}, "json_schema", "no JSON"),
        ({"json_schema": {"minimum": float("nan")}}, "json_schema", "NaN"),
        ({"regex": ""}, "regex", "not empty"),
        ({"grammar": {}}, "grammar", "not an object"),
        ({"structured_outputs": []}, "structured_outputs", "not a list"),
        ({"structured_outputs": {}}, "structured_outputs", "one of json, regex, grammar, choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "and nothing else"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", "not an integer"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "none of them empty"),
        ({"guided_choice": ["a"] * 1001}, "guided_choice", "at most 1000"),
        ({"grammar": "start: " + "a" * 300_000}, "grammar", "at most 262144 characters"),
        ({"json_schema": {"enum": ["a" * 300_000]}}, "json_schema", "at most 262144 characters"),
        ({"regex": "a", "grammar": "start: X"}, "grammar", "regex and grammar both constrain the output"),
    ],
)
def test_a_constraint_that_cannot_be_kept_is_refused(params: dict[str, Any], param: str, says: str) -> None:
    error = refused(**params)
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_constraint_beside_a_demanded_call_is_refused(choice: Any) -> None:
    error = refused(tools=[LOOK], tool_choice=choice, json_schema=SCHEMA)
    assert error.param == "json_schema"
    assert read(tools=[LOOK], tool_choice="auto", json_schema=SCHEMA).grammar is not None


def test_a_schema_nested_past_all_bounds_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    assert "nested too deeply" in refused(json_schema=schema).message


# Reasoning

ON: dict[str, Any] = {"enable_thinking": True, "thinking": True}
OFF: dict[str, Any] = {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize(
    ("params", "variables", "reasoning", "budget"),
    [
        ({}, {}, True, None),
        ({"reasoning_effort": "none"}, OFF, False, None),
        ({"reasoning_effort": "minimal"}, {**ON, "reasoning_effort": "low"}, True, None),
        ({"reasoning_effort": "medium"}, {**ON, "reasoning_effort": "medium"}, True, None),
        ({"reasoning_effort": "xhigh"}, {**ON, "reasoning_effort": "high"}, True, None),
        ({"reasoning_effort": "default"}, {}, True, None),
        (
            {"reasoning_effort": {"effort": "low", "summary": "auto"}},
            {**ON, "reasoning_effort": "low"},
            True,
            None,
        ),
        ({"reasoning_effort": {"summary": "auto"}}, {}, True, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, {**ON, "thinking_budget": 64}, True, 64),
        ({"thinking": {"type": "enabled"}}, ON, True, None),
        ({"thinking": {"type": "disabled"}}, OFF, False, None),
        ({"thinking": {"type": "adaptive"}}, {}, True, None),
        ({"thinking": False}, OFF, False, None),
        ({"enable_thinking": False}, OFF, False, None),
        ({"reasoning_budget": 9}, {"thinking_budget": 9}, True, 9),
        ({"thinking_budget": 9}, {"thinking_budget": 9}, True, 9),
        ({"thinking_token_budget": 9}, {"thinking_budget": 9}, True, 9),
        ({"reasoning_budget_tokens": 9}, {"thinking_budget": 9}, True, 9),
        ({"reasoning_budget": -1}, {}, True, None),
        ({"reasoning_budget": 0}, OFF, False, None),
        ({"reasoning_effort": "high", "enable_thinking": False}, OFF, False, None),
        ({"reasoning_effort": "high", "thinking": {"type": "disabled"}}, OFF, False, None),
        ({"verbosity": "low"}, {"verbosity": "low"}, True, None),
    ],
)
def test_reasoning_is_asked_of_the_template_and_of_the_engine(
    params: dict[str, Any], variables: dict[str, Any], reasoning: bool, budget: int | None
) -> None:
    answer = read(**params)
    assert answer.template_variables == variables
    assert answer.chat == ChatAnswer(reasoning=reasoning, reasoning_budget=budget)


@pytest.mark.parametrize(
    ("own", "reasoning"), [({"enable_thinking": True}, True), ({"thinking": False}, False), ({"other": 1}, False)]
)
def test_what_the_client_tells_the_template_itself_wins(own: dict[str, Any], reasoning: bool) -> None:
    params = {"reasoning_effort": "none", "chat_template_kwargs": own}
    chat = read_chat([{"role": "user", "content": "hi"}], params)
    answer = read_answer_params(params, chat)
    assert answer.chat.reasoning is reasoning
    assert answer.of_chat(chat).template_variables == (own if "other" not in own else {**OFF, **own})


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": "on"}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"reasoning_budget": -2}, "reasoning_budget"),
        ({"enable_thinking": 1}, "enable_thinking"),
        ({"verbosity": "loud"}, "verbosity"),
    ],
)
def test_a_bad_wish_for_reasoning_is_refused_by_name(params: dict[str, Any], param: str) -> None:
    assert refused(**params).param == param


# Probabilities and copies


@pytest.mark.parametrize(
    ("params", "num_top"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_probabilities_are_given_where_they_were_asked_for(params: dict[str, Any], num_top: int | None) -> None:
    assert read(**params).top_logprobs == num_top


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 10**400}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 1, "best_of": 10**9}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_a_bad_number_is_refused_by_name(params: dict[str, Any], param: str) -> None:
    assert refused(**params).param == param


@pytest.mark.parametrize("params", [{"n": 3}, {"n": 3, "best_of": 3}, {"n": 3, "best_of": 1}])
def test_several_answers_are_asked_for(params: dict[str, Any]) -> None:
    assert read(**params).num_choices == 3


@given(name=st.sampled_from(sorted(ANSWER_KEYS)), value=JSON)
def test_any_json_value_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    refusal = None
    try:
        read(**{name: value})
    except InvalidRequest as error:
        refusal = error
    assert refusal is None or (refusal.param or "").startswith(name)
