"""The demo model's chat template, through the renderer that serves it."""

from pathlib import Path
from typing import Any

import pytest

import exllamav3_adapters
from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.chat_template import compile_chat_template
from exllamav3_adapters.contract import Chat, Head

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Sucht é.", "parameters": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "found"}
ASSISTANT = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    path = Path(exllamav3_adapters.__file__).with_name("demo_chat_template.jinja")
    template = compile_chat_template(path.read_text(encoding="utf-8"), str(path))
    return ChatRenderer(template, {}, lambda text: list(text.encode()))


def text(renderer: ChatRenderer, *messages: Any, tools: Any = ()) -> str:
    return renderer.render_text(Chat(messages=messages, tools=tools))


def test_it_takes_every_shape_without_being_adapted(renderer: ChatRenderer) -> None:
    dialect = renderer.dialect(with_tools=True)
    assert dialect.tools
    assert dialect.tool_history
    assert dialect.several_systems
    assert dialect.later_systems
    assert dialect.developer_role
    assert dialect.part_roles >= {"system", "user", "assistant", "tool"}
    assert not dialect.moving_head


def test_a_turn_is_chatml(renderer: ChatRenderer) -> None:
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert text(renderer, SYSTEM, USER) == turns + ASSISTANT


def test_without_a_system_message_the_models_own_is_there(renderer: ChatRenderer) -> None:
    rendered = text(renderer, USER)
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.count("<|im_start|>system") == 1
    assert "SmolLM" not in text(renderer, {"role": "developer", "content": "Be brief."}, USER)


def test_text_parts_are_joined(renderer: ChatRenderer) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert text(renderer, SYSTEM, {"role": "user", "content": parts}) == text(renderer, SYSTEM, USER)


def test_tools_are_listed_in_the_first_system_turn_only(renderer: ChatRenderer) -> None:
    for messages in ([SYSTEM, SYSTEM, USER], [USER]):
        rendered = text(renderer, *messages, tools=[TOOL])
        first_turn = rendered.split("<|im_end|>")[0]
        listed = first_turn.split("<tools>\n")[1].split("\n</tools>")[0]
        assert '"name": "look_up"' in listed
        assert "Sucht é." in listed
        assert rendered.count("<tools>\n") == 1


def test_calls_and_results_are_in_the_hermes_form(renderer: ChatRenderer) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
    rendered = text(renderer, SYSTEM, USER, called, RESULT, RESULT, tools=[TOOL])
    call = '<tool_call>\n{"name": "look_up", "arguments": {"a": 1}}\n</tool_call>'
    result = "<tool_response>\nfound\n</tool_response>"
    assert f"{ASSISTANT}{call}\n{call}<|im_end|>\n" in rendered
    assert rendered.endswith(f"<|im_start|>tool\n{result}\n{result}<|im_end|>\n{ASSISTANT}")


def test_what_is_said_before_a_call_stays_before_it(renderer: ChatRenderer) -> None:
    called = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}
    assert f"{ASSISTANT}Let me see.\n<tool_call>\n" in text(renderer, USER, called, RESULT)


def test_a_head_is_its_whole_system_turn(renderer: ChatRenderer) -> None:
    head = renderer.render_head(Head(messages=[SYSTEM], tools=[TOOL]))
    chat = renderer.render(Chat(messages=[SYSTEM, USER], tools=[TOOL]))
    assert bytes(head.token_ids).decode().endswith("</tool_call><|im_end|>\n<|im_start|>")
    assert chat.token_ids[: len(head.token_ids)] == head.token_ids
    assert chat.num_head_tokens == len(head.token_ids)
