"""Chats in, tokens out. The tokens here are bytes, so that they can be read."""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any

import pytest

from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.chat_template import compile_chat_template
from exllamav3_adapters.contract import Chat, Head
from exllamav3_adapters.errors import InvalidRequest

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
"""Knows system turns, and no tools, parts or developers."""
STRICT = """{% for m in messages %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
<{{ m.role }}>{{ m.content | trim }}
{% endfor %}<assistant>"""
"""Knows neither system turns nor tools, as Gemma 2."""
TOOLS = """{% if tools %}[{{ tools | tojson }}]{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}
{%- for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}

{% endfor %}<assistant>"""
TEXT_ARGUMENTS = TOOLS.replace("call.function.arguments | tojson", "call.function.arguments")
PARTS = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}
{%- else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"""
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yes"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up é.", "parameters": {}}}


def renderer(source: str, tool_use: str | None = None, now: datetime = datetime(2026, 5, 4)) -> ChatRenderer:
    template = compile_chat_template(source, "test.jinja", tool_use)
    return ChatRenderer(template, {"bos_token": "<s>"}, lambda text: list(text.encode()), now=lambda: now)


def text(source: str, *messages: Any, tools: Any = (), **variables: Any) -> str:
    chat = Chat(messages=messages, tools=tools, template_variables=variables)
    return bytes(renderer(source).render(chat).token_ids).decode()


def refusal(source: str, *messages: Any, **chat: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        renderer(source).render(Chat(messages=messages, **chat))
    return caught.value


def called(arguments: Any, **message: Any) -> dict[str, Any]:
    call = {
        "id": "call_0123456789abcdefghij",
        "type": "function",
        "function": {"name": "look_up", "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call], **message}


RESULT = {"role": "tool", "tool_call_id": "call_0123456789abcdefghij", "content": "found"}


def test_a_chat_ends_where_the_answer_begins() -> None:
    assert text(PLAIN, SYSTEM, USER) == "<system>Be brief.\n<user>hi\n<assistant>"


def test_the_template_writes_the_first_token_and_nothing_else_does() -> None:
    assert text("{{ bos_token }}" + PLAIN, USER).startswith("<s><user>")


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [SYSTEM, USER, called('{"a": 1}'), RESULT]
    before = copy.deepcopy((messages, TOOL))
    renderer(TOOLS).render(Chat(messages=messages, tools=[TOOL]))
    assert (messages, TOOL) == before


def test_template_variables_reach_the_template() -> None:
    assert text("{{ mood }}" + PLAIN, USER, mood="calm").startswith("calm")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_template_variables_do_not_replace_the_chat(name: str) -> None:
    error = refusal(PLAIN, USER, template_variables={name: []})
    assert (name in error.message, error.param) == (True, "chat_template_kwargs")


# Content


def test_parts_go_to_a_template_that_takes_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text(PARTS, {"role": "user", "content": parts}) == "<user>ab"


def test_parts_become_lines_for_a_template_that_takes_strings() -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {}}, {"type": "input_text", "text": "b"}]
    assert text(PLAIN, {"role": "user", "content": parts}) == "<user>a\nb\n<assistant>"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "image", "file", "video_url"])
def test_media_are_refused_because_the_model_takes_text(kind: str) -> None:
    error = refusal(PLAIN, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]})
    assert error.param == "messages"
    assert error.message.startswith("messages[0].content[1] is of type")
    assert "takes text only" in error.message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role is 'robot'"),
        ({"content": "x"}, "messages[0].role is 'None'"),
        ({"role": "user"}, "messages[0].content is missing"),
        ({"role": "user", "content": 3}, "messages[0].content must be a string or a list"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0] must be a part"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text must be a string"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "only an assistant message"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls[0] must be an object"),
        ("x", "messages[0] must be an object"),
    ],
)
def test_a_malformed_message_is_refused_by_its_position(message: Any, words: str) -> None:
    error = refusal(PLAIN, message)
    assert words in error.message
    assert error.param == "messages"


def test_a_chat_without_messages_is_refused() -> None:
    assert "send at least one message" in refusal(PLAIN).message


def test_a_message_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert "nested more than 64 levels" in refusal(PLAIN, {**USER, "extra": deep}).message


def test_half_a_surrogate_pair_is_refused() -> None:
    assert "surrogate pair" in refusal(PLAIN, {"role": "user", "content": "a\ud800b"}).message


# Roles


def test_a_developer_is_the_system_for_a_template_that_does_not_name_it() -> None:
    assert text(PLAIN, {"role": "developer", "content": "d"}, USER).startswith("<system>d")


def test_a_developer_stays_one_for_a_template_that_names_it() -> None:
    source = "{% if messages[0].role == 'developer' %}!{% endif %}" + PLAIN
    assert text(source, {"role": "developer", "content": "d"}, USER).startswith("!<developer>d")


def test_a_system_text_opens_the_user_turn_where_there_is_no_system_turn() -> None:
    assert text(STRICT, SYSTEM, USER) == "<user>Be brief.\n\nhi\n<assistant>"


def test_a_system_text_alone_becomes_a_user_turn() -> None:
    assert text(STRICT, SYSTEM) == "<user>Be brief.\n<assistant>"


def test_several_system_messages_become_one_where_the_template_takes_one() -> None:
    one = "{% if messages[1].role == 'system' %}{{ raise_exception('one') }}{% endif %}" + PLAIN
    rendered = text(one, SYSTEM, {"role": "developer", "content": "More."}, USER)
    assert rendered.startswith("<system>Be brief.\n\nMore.\n<user>")


def test_several_system_messages_stay_apart_where_the_template_takes_them() -> None:
    assert text(PLAIN, SYSTEM, SYSTEM, USER).startswith("<system>Be brief.\n<system>Be brief.\n<user>")


def test_a_later_system_message_stays_in_its_place() -> None:
    assert text(PLAIN, USER, SYSTEM, USER) == "<user>hi\n<system>Be brief.\n<user>hi\n<assistant>"


@pytest.mark.parametrize("fate", ["{% continue %}", "{{ raise_exception('first') }}"])
def test_a_later_system_message_opens_the_user_turn_where_the_template_would_lose_it(fate: str) -> None:
    source = PLAIN.replace("<{{", "{% if m.role == 'system' and loop.index > 1 %}" + fate + "{% endif %}<{{", 1)
    rendered = text(source, SYSTEM, USER, {**SYSTEM, "content": "Now French."}, USER)
    assert rendered == "<system>Be brief.\n<user>hi\n<user>Now French.\n\nhi\n<assistant>"


def test_turns_of_one_role_are_one_where_the_template_insists_on_alternation() -> None:
    lines = [line for line in text(STRICT, USER, USER, ANSWER, ANSWER, USER).splitlines() if line]
    assert lines == ["<user>hi", "hi", "<assistant>yes", "yes", "<user>hi", "<assistant>"]
    assert text(PLAIN, USER, USER) == "<user>hi\n<user>hi\n<assistant>"


def test_a_user_turn_joins_the_result_before_it_where_the_template_takes_none_there() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' and not loop.first and loop.previtem.role == 'tool' %}"
        "{{ raise_exception('no user after a tool') }}{% endif %}{% endfor %}" + TOOLS
    )
    chat = [USER, called({"q": "é"}), RESULT, USER]
    assert text(source, *chat).endswith("<tool>found\n\nhi\n<assistant>")
    assert text(TOOLS, *chat).endswith("<tool>found\n<user>hi\n<assistant>")


def test_a_refusal_is_the_templates_own_words() -> None:
    error = refusal(STRICT, ANSWER, USER)
    assert error.message == "the model's chat template refuses this chat: roles must alternate"
    assert error.param == "messages"


def test_a_fault_of_the_template_is_said_to_be_one() -> None:
    error = refusal("{% if messages|length > 1 %}{{ nothing.at_all }}{% endif %}x", USER, ANSWER)
    assert "cannot render this chat: UndefinedError: 'nothing' is undefined" in error.message
    assert "test.jinja" in error.message


# Tools


def test_tools_get_the_keys_that_templates_read() -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    assert '{"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}' in text(
        TOOLS, USER, tools=[tool]
    )


@pytest.mark.parametrize(
    "tool", [{}, {"function": {}}, {"type": "web_search", "function": {"name": "x"}}, {"name": "x"}]
)
def test_a_tool_that_is_no_function_is_refused(tool: dict[str, Any]) -> None:
    error = refusal(TOOLS, USER, tools=[tool])
    assert (error.message[:8], error.param) == ("tools[0]", "tools")


def test_arguments_reach_a_template_as_an_object() -> None:
    assert '[look_up {"a": 1}]' in text(TOOLS, USER, called('{"a":1}'), RESULT)


def test_arguments_reach_a_template_that_joins_text_as_text() -> None:
    assert '[look_up {"a": 1}]' in text(TEXT_ARGUMENTS, USER, called({"a": 1}), RESULT)


@pytest.mark.parametrize("arguments", ["", " ", "null", None, {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    assert "[look_up {}]" in text(TOOLS, USER, called(arguments), RESULT)


def test_arguments_that_are_no_json_stay_text() -> None:
    assert '[look_up "{bad"]' in text(TOOLS, USER, called("{bad"), RESULT)


def test_arguments_that_are_no_json_are_refused_where_the_template_needs_an_object() -> None:
    source = TOOLS.replace(
        "{{ call.function.arguments | tojson }}",
        "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
    )
    error = refusal(source, USER, called("{bad"), RESULT)
    assert error.message.startswith("messages[1].tool_calls[0].function.arguments is not a JSON object")


def test_null_content_beside_tool_calls_is_not_written() -> None:
    assert "None" not in text(TOOLS, USER, called("{}"), RESULT)


def test_long_ids_are_shortened_alike_for_a_template_that_insists() -> None:
    source = """{% for m in messages %}{{ m.content }}{% for call in m.tool_calls %}
{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}
{{ call.function | tojson }} id={{ call.id }};{% endfor %}
{% if m.role == 'tool' %}for={{ m.tool_call_id }};{% endif %}{% endfor %}"""
    rendered = text(source, USER, called("{}"), RESULT)
    call_id, result_id = (rendered.split(key)[1].split(";")[0] for key in ("id=", "for="))
    assert call_id == result_id
    assert len(call_id) == 9


def test_a_template_without_tools_gets_them_in_its_system_turn() -> None:
    rendered = text(PLAIN, SYSTEM, USER, tools=[TOOL])
    system, user = rendered.split("<user>")
    assert system.startswith("<system>Be brief.\n\n# Tools")
    assert '<tools>\n{"type": "function", "function": {"name": "look_up", "description": "Looks up é."' in system
    assert user == "hi\n<assistant>"


def test_a_template_without_tools_gets_calls_and_results_as_text() -> None:
    rendered = text(PLAIN, USER, called('{"a": 1}', content="Wait."), RESULT, RESULT, USER)
    assert rendered == (
        '<user>hi\n<assistant>Wait.\n<tool_call>\n{"name": "look_up", "arguments": {"a": 1}}\n</tool_call>\n'
        "<user><tool_response>\nfound\n</tool_response>\n<tool_response>\nfound\n</tool_response>\nhi\n<assistant>"
    )


def test_a_function_message_is_a_tools_result() -> None:
    assert "<tool>found" in text(TOOLS, USER, called("{}"), {"role": "function", "name": "look_up", "content": "found"})


def test_a_template_that_knows_neither_tools_nor_system_has_both_in_the_user_turn() -> None:
    rendered = text(STRICT, SYSTEM, USER, called("{}"), RESULT, tools=[TOOL])
    assert rendered.startswith("<user>Be brief.\n\n# Tools")
    assert rendered.endswith("</tool_call>\n<user><tool_response>\nfound\n</tool_response>\n<assistant>")


def test_a_template_of_its_own_renders_chats_with_tools() -> None:
    both = renderer("plain", "with {{ tools[0].function.name }}")
    assert both.render_text(Chat(messages=[USER])) == "plain"
    assert both.render_text(Chat(messages=[USER], tools=[TOOL])) == "with look_up"


# Heads


def head_text(source: str, *messages: Any, tools: Any = ()) -> str:
    return bytes(renderer(source).render_head(Head(messages=messages, tools=tools)).token_ids).decode()


def test_a_head_ends_before_the_first_word_that_a_message_could_change() -> None:
    assert head_text(PLAIN, SYSTEM) == "<system>Be brief.\n<user"


def test_an_empty_head_is_what_the_template_always_writes() -> None:
    assert head_text("Preamble. " + PLAIN) == "Preamble. <user"


def test_a_template_that_writes_nothing_first_has_an_empty_head() -> None:
    assert head_text("{% for m in messages %}{{ m.content }}{% endfor %}") == ""


def test_a_changed_description_is_another_head() -> None:
    other = {**TOOL, "function": {**TOOL["function"], "description": "Looks down."}}
    assert head_text(TOOLS, tools=[TOOL]) != head_text(TOOLS, tools=[other])


def test_a_prompt_counts_its_head() -> None:
    prompt = renderer(PLAIN).render(Chat(messages=[SYSTEM, USER, {"role": "assistant", "content": "yes"}, USER]))
    assert bytes(prompt.token_ids[: prompt.num_head_tokens]).decode() == "<system>Be brief.\n<user"


def test_a_prompt_counts_its_head_under_its_own_variables() -> None:
    chat = Chat(messages=[SYSTEM, USER], template_variables={"mood": "calm"})
    prompt = renderer("{{ mood }}" + PLAIN).render(chat)
    assert bytes(prompt.token_ids[: prompt.num_head_tokens]).decode() == "calm<system>Be brief.\n<user"


def test_a_head_is_rendered_under_its_variables() -> None:
    rendering, variables = renderer("{{ mood }}" + PLAIN), {"mood": "calm"}
    head = rendering.render_head(Head(messages=[SYSTEM], template_variables=variables))
    assert bytes(head.token_ids).decode() == "calm<system>Be brief.\n<user"
    prompt = rendering.render(Chat(messages=[SYSTEM, USER], template_variables=variables))
    assert prompt.token_ids[: prompt.num_head_tokens] == head.token_ids


def test_a_head_is_rendered_once() -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return list(text.encode())

    counting = ChatRenderer(compile_chat_template(PLAIN, "test.jinja"), {}, encode)
    for words in ("a", "b", "c"):
        counting.render(Chat(messages=[dict(SYSTEM), {"role": "user", "content": words}]))
    assert len(encoded) == 2 + 3


def test_a_head_with_the_date_is_rendered_again_the_next_day() -> None:
    clock = [datetime(2026, 5, 4, 23)]
    template = compile_chat_template("{{ strftime_now('%d %b') }} " + PLAIN, "test.jinja")
    dated = ChatRenderer(template, {}, lambda text: list(text.encode()), now=lambda: clock[0])
    head = Head(messages=[SYSTEM])
    first = dated.render_head(head)
    clock[0] = datetime(2026, 5, 5, 1)
    assert bytes(first.token_ids).startswith(b"04 May <system>")
    assert bytes(dated.render_head(head).token_ids).startswith(b"05 May <system>")


def test_a_head_that_ends_in_a_user_turn_is_followed_by_an_answer() -> None:
    assert head_text(STRICT, USER) == "<user>hi\n<assistant"


def test_a_head_that_the_template_refuses_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        renderer(STRICT).render_head(Head(messages=[ANSWER, USER]))


def test_a_head_that_the_template_refuses_does_not_stop_the_chat() -> None:
    source = "{% if messages|length < 3 %}{{ raise_exception('three') }}{% endif %}" + PLAIN
    assert renderer(source).render(Chat(messages=[USER, USER, USER])).num_head_tokens == 0
