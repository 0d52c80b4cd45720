from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_exllamav3.canonical import canonical_form, head_digest
from litellm_exllamav3.head import request_head
from litellm_exllamav3.nonces import DEFAULT_NONCES, NonceRules, without_nonces

RULES = NonceRules(DEFAULT_NONCES)
TOOL = {
    "type": "function",
    "function": {
        "name": "ls",
        "description": "Lists a folder",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def digest(body: dict[str, Any], call_type: str = "acompletion") -> str:
    head = request_head(body, call_type)
    assert head is not None
    form = canonical_form(head, RULES)
    assert form is not None
    return head_digest(form)


def chat(content: object = "You are", tools: list[Any] | None = None, **system: object) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": content, **system}, {"role": "user"}], "tools": tools or []}


def reordered(value: Any, seed: int) -> Any:
    if isinstance(value, list):
        return [reordered(item, seed) for item in value]
    if isinstance(value, dict):
        keys = list(value)
        random.Random(seed).shuffle(keys)
        return {key: reordered(value[key], seed) for key in keys}
    return value


def test_tools_in_another_order_of_keys_are_one_head() -> None:
    assert digest(chat(tools=[TOOL])) == digest(chat(tools=[reordered(TOOL, 3)]))
    assert list(reordered(TOOL, 3)) != list(TOOL)


def test_a_changed_description_is_another_head() -> None:
    changed = copy.deepcopy(TOOL)
    changed["function"]["description"] += "."  # type: ignore[index]
    assert digest(chat(tools=[TOOL])) != digest(chat(tools=[changed]))


def test_tools_in_another_order_are_another_head() -> None:
    other = {"type": "function", "function": {"name": "cat"}}
    assert digest(chat(tools=[TOOL, other])) != digest(chat(tools=[other, TOOL]))


def test_heads_that_share_a_beginning_are_two() -> None:
    assert digest(chat("You are Claude")) != digest(chat("You are Claude."))


def test_what_follows_the_head_does_not_count() -> None:
    body = chat()
    longer = {**body, "messages": [*body["messages"], {"role": "assistant", "content": "hello"}], "temperature": 0}
    assert digest(body) == digest(longer)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "You are"}],
        [{"text": "You are", "type": "text", "cache_control": {"type": "ephemeral"}}],
        [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "You are"}],
        "x-anthropic-billing-header: cch=2;\nYou are",
    ],
)
def test_spellings_of_one_text_are_one_head(content: object) -> None:
    assert digest(chat(content)) == digest(chat("You are"))


def test_two_parts_are_not_one_text() -> None:
    parts = [{"type": "text", "text": "You"}, {"type": "text", "text": " are"}]
    assert digest(chat(parts)) != digest(chat("You are"))


def test_marks_for_another_cache_do_not_count() -> None:
    marked_tool = {**TOOL, "cache_control": {"type": "ephemeral"}}
    marked_function = {**TOOL, "function": {**TOOL["function"], "cache_control": {}}}  # type: ignore[dict-item]
    plain = digest(chat(tools=[TOOL]))
    assert digest(chat(tools=[marked_tool])) == plain
    assert digest(chat(tools=[marked_function])) == plain
    assert digest(chat(tools=[TOOL], cache_control={"type": "ephemeral"})) == plain


def test_system_and_developer_are_two_heads() -> None:
    assert digest(chat(role="developer")) != digest(chat())


def test_a_changing_nonce_line_is_one_head() -> None:
    seen = {digest(chat(f"x-anthropic-billing-header: cc_version=2; cch={n};\nYou are")) for n in range(5)}
    assert len(seen) == 1


def test_a_chat_without_its_nonces_has_the_digest_of_one_with_them() -> None:
    body = chat([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "größe"}])
    assert digest({**body, "messages": without_nonces(body["messages"], RULES)}) == digest(body)


FUNCTION: dict[str, Any] = TOOL["function"]  # type: ignore[assignment]
MESSAGES_TOOL = {"name": "ls", "description": "Lists a folder", "input_schema": FUNCTION["parameters"]}
RESPONSES_TOOL = {"type": "function", "strict": False, **FUNCTION}


@pytest.mark.parametrize(
    ("call_type", "body"),
    [
        ("acompletion", {"messages": [{"role": "system", "content": [{"type": "text", "text": "You are"}]}]}),
        ("anthropic_messages", {"system": "You are"}),
        (
            "anthropic_messages",
            {"system": [{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}}]},
        ),
        ("aresponses", {"instructions": "You are", "input": "hi"}),
        (
            "aresponses",
            {"input": [{"type": "message", "role": "system", "content": [{"type": "input_text", "text": "You are"}]}]},
        ),
    ],
)
def test_one_head_is_one_on_every_route(call_type: str, body: dict[str, Any]) -> None:
    tools = {"acompletion": TOOL, "anthropic_messages": MESSAGES_TOOL, "aresponses": RESPONSES_TOOL}
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    assert digest(body, call_type) == digest(chat())
    assert digest({**body, "tools": [tools[call_type]]}, call_type) == digest(chat(tools=[TOOL]))


@pytest.mark.parametrize(
    ("call_type", "tool"),
    [
        ("acompletion", {"type": "function", "function": {"name": "ls", "strict": True}}),
        ("acompletion", {"type": "function", "function": {"name": "ls", "description": None, "parameters": {}}}),
        ("anthropic_messages", {"type": "custom", "name": "ls", "input_schema": {"type": "object"}, "strict": True}),
        ("aresponses", {"type": "function", "name": "ls", "description": "", "parameters": None}),
    ],
)
def test_what_a_tool_leaves_out_is_the_same_on_every_route(call_type: str, tool: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user"}], "input": "hi", "tools": [tool]}
    assert digest(body, call_type) == digest(
        {"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {"name": "ls"}}]}
    )


VARIABLES: list[tuple[str, dict[str, Any]]] = [
    ("acompletion", {"reasoning_effort": "low"}),
    ("anthropic_messages", {"output_config": {"effort": "low"}}),
    ("aresponses", {"reasoning": {"effort": "low", "summary": "auto"}}),
]


def test_a_heads_variables_are_the_same_on_every_route() -> None:
    body = {"messages": [{"role": "user"}], "input": "hi", "tools": [TOOL]}
    seen = {digest({**body, **fields}, call_type) for call_type, fields in VARIABLES}
    assert len(seen) == 1
    assert digest(body) not in seen


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "high"},
        {"thinking": {"type": "disabled"}},
        {"enable_thinking": False, "chat_template_kwargs": {"builtin_tools": []}},
        {"chat_template_kwargs": {"documents": ["x"]}},
        {"extra_body": {"chat_template_kwargs": {"documents": ["y"]}}},
    ],
)
def test_a_head_under_other_variables_is_another(fields: dict[str, Any]) -> None:
    assert digest({**chat(), **fields}) != digest(chat())


def test_variables_that_ask_for_nothing_are_none() -> None:
    fields = {"reasoning_effort": None, "thinking": {"type": "adaptive"}, "chat_template_kwargs": {}}
    assert digest({**chat(), **fields}) == digest(chat())


def test_every_byte_of_a_large_head_counts() -> None:
    text = "größe 文件 🙂 " * 6000
    digests = {digest(chat(text[:at] + "X" + text[at + 1 :])) for at in range(0, len(text), 5000)}
    assert len(digests) == len(range(0, len(text), 5000))


@pytest.mark.parametrize("odd", ["\ud800 lone", 2**70, -(2**70), float("nan"), float("inf")])
def test_what_is_not_quite_json_still_has_a_digest(odd: object) -> None:
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"default": odd}}}
    assert digest(chat(tools=[tool])) == digest(chat(tools=[reordered(tool, 3)]))
    assert digest(chat(tools=[tool])) != digest(chat(tools=[TOOL]))


def test_two_big_integers_are_two_heads() -> None:
    assert digest(chat(tools=[{"default": 2**70}])) != digest(chat(tools=[{"default": 2**70 + 1}]))


def deeply_nested() -> list[Any]:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    "odd", [object(), {1: 2, "a": 3}, deeply_nested(), b"bytes"], ids=["object", "keys", "deep", "b"]
)
def test_what_cannot_be_written_as_json_has_none(odd: object) -> None:
    head = request_head(chat(tools=[odd]), "acompletion")
    assert head is not None
    assert canonical_form(head, RULES) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters(exclude_categories=()), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(content=JSON, tool=JSON, seed=st.integers(0, 100))
def test_the_order_of_keys_never_counts(content: Any, tool: Any, seed: int) -> None:
    assert digest(chat(content, [tool])) == digest(chat(reordered(content, seed), [reordered(tool, seed)]))


@given(one=st.lists(JSON, max_size=3), other=st.lists(JSON, max_size=3))
def test_other_tools_are_another_head(one: list[Any], other: list[Any]) -> None:
    if repr(reordered_by_key(one)) != repr(reordered_by_key(other)):
        assert digest(chat(tools=one)) != digest(chat(tools=other))


def reordered_by_key(value: Any) -> Any:
    if isinstance(value, list):
        return [reordered_by_key(item) for item in value]
    if isinstance(value, dict):
        return {key: reordered_by_key(value[key]) for key in sorted(value) if key != "cache_control"}
    return value


@given(body=st.dictionaries(st.sampled_from(["messages", "tools", "system", "input", "instructions"]), JSON))
def test_no_body_raises(body: dict[str, Any]) -> None:
    for call_type in ("acompletion", "anthropic_messages", "aresponses"):
        head = request_head(body, call_type)
        if head is not None:
            canonical_form(head, RULES)
