"""What the templates of real models write for calls is read back as the same calls."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from read_answer import HARD_CALL, TOOLS, WEATHER_CALL, accepts, read_answer, tagged

from exllamav3_adapters.answer_format.answer_format import AnswerFormat, TaggedFormat
from exllamav3_adapters.answer_format.find_format import FormatOptions, find_format
from exllamav3_adapters.answer_format.tool_formats import OWN_BLOCK, TOOL_FORMATS
from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.chat_template import find_chat_template
from exllamav3_adapters.contract import Chat, ChatAnswer, ToolUse
from exllamav3_adapters.tool_block import tool_calls_as_text

TEMPLATE_DIR = Path(__file__).parents[4] / "shared" / "chat_templates"
FORMS = {
    "ByteDance-Seed-OSS": "seed_oss",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command",
    "GLM-4.6": "glm",
    "Kimi-K2-Instruct": "kimi_k2",
    "MiniMax-M2": "minimax",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_id",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "google-gemma-4-31B-it": "gemma",
    "ibm-granite-granite-4.0": "hermes",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "openai-gpt-oss-120b": "harmony",
    "poolside-Laguna-XS.2": "glm",
}
REASONING_IN_HISTORY = {
    "ByteDance-Seed-OSS",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.6",
    "MiniMax-M2",
    "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B",
    "google-gemma-4-31B-it",
    "openai-gpt-oss-120b",
    "poolside-Laguna-XS.2",
}
LEAVES_TEXT_OUT = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "google-gemma-4-31B-it",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
}
"""Beside calls; gpt-oss takes it for reasoning."""
OPENS_REASONING = {"MiniMax-M2", "NVIDIA-Nemotron-Nano-v2", "Qwen3.5-4B"}
"""Where nothing is said of it; others do when it is asked for."""
OPENS_REASONING_WHEN_ASKED = OPENS_REASONING | {
    "Qwen-QwQ-32B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V4",
    "poolside-Laguna-XS.2",
}
ONE_CALL_A_TURN = {"llama3_json", "harmony"}
ENDS_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|observation|>",
    "<｜end▁of▁sentence｜>",
    "<seed:eos>",
    "<SPECIAL_12>",
    "[e~[",
    "</s>",
    "<|call|>",
    "<|tool_response>",
    "</assistant>",
)
USER = {"role": "user", "content": "Hi"}

pytestmark = pytest.mark.skipif(not TEMPLATE_DIR.is_dir(), reason="there are no templates in ../shared/chat_templates")
every_form = pytest.mark.parametrize("stem", FORMS)


@pytest.fixture(autouse=True)
def _vocabulary(o200k_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(o200k_folder))


@cache
def renderer(stem: str) -> ChatRenderer:
    template = find_chat_template(TEMPLATE_DIR, str(TEMPLATE_DIR / f"{stem}.jinja"))
    return ChatRenderer(template, {"bos_token": "<s>", "eos_token": "</s>"}, lambda text: list(text.encode()))


def native_form(stem: str) -> AnswerFormat:
    """As if the template rendered tools itself; some only know the calls."""
    return find_format([(TEMPLATE_DIR / f"{stem}.jinja").read_text()], FormatOptions(), knows_tools=True)


def written_turn(stem: str, calls: list[tuple[str, Any]], **message: Any) -> tuple[str, bool]:
    """What the template writes where an answer would stand, and whether that begins inside reasoning."""
    tools = TOOLS if renderer(stem).dialect(with_tools=True).tools else ()
    tool_calls = [
        {"id": f"abcdEFGH{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(calls)
    ]
    turn = {"role": "assistant", "content": None, "tool_calls": tool_calls, **message}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "RESULT"} for call in tool_calls]
    prompt = renderer(stem).render_text(Chat(messages=[USER], tools=tools))
    text = renderer(stem).render_text(Chat(messages=[USER, turn, *results], tools=tools))
    shared = os.path.commonprefix([prompt, text])  # noqa: RUF071 - of characters
    if shared.rfind("<") > shared.rfind(">"):
        shared = shared[: shared.rfind("<")]  # of a tag that begins like another
    answer = text[len(shared) :]
    end = min(at for mark in ENDS_OF_TURN if (at := answer.find(mark)) >= 0)
    return answer[:end], native_form(stem).opens_reasoning(shared)


@every_form
def test_a_templates_form_is_known_by_its_source(stem: str) -> None:
    assert native_form(stem).tool_format == FORMS[stem]


@every_form
@pytest.mark.parametrize("content", ["Let me see.", None], ids=["text", "no text"])
def test_calls_are_read_as_the_template_writes_them(stem: str, content: str | None) -> None:
    calls: list[tuple[str, Any]] = [WEATHER_CALL, HARD_CALL]
    if FORMS[stem] in ONE_CALL_A_TURN:
        calls = [HARD_CALL]
    written, opened = written_turn(stem, calls, content=content)
    parser = native_form(stem).parser(ChatAnswer(tool_use=ToolUse(tools=TOOLS)), opens_reasoning=opened)
    answer = read_answer(parser, list(written))
    assert answer.arguments == calls
    assert answer.text == ("" if stem in LEAVES_TEXT_OUT else content or "")


@every_form
def test_reasoning_is_read_as_the_template_writes_it(stem: str) -> None:
    written, opened = written_turn(stem, [HARD_CALL], reasoning_content="First, think.")
    parser = native_form(stem).parser(ChatAnswer(tool_use=ToolUse(tools=TOOLS)), opens_reasoning=opened)
    answer = read_answer(parser, list(written))
    assert answer.reasoning == ("First, think." if stem in REASONING_IN_HISTORY else "")
    assert answer.arguments == [HARD_CALL]
    assert answer.text == ""


@pytest.mark.parametrize("stem", [stem for stem, form in FORMS.items() if form != "harmony"])
def test_a_grammar_of_the_form_takes_what_the_template_writes(stem: str) -> None:
    form = native_form(stem)
    assert isinstance(form, TaggedFormat)
    assert form.tools is not None
    calls: list[tuple[str, Any]] = [WEATHER_CALL, HARD_CALL]
    if FORMS[stem] in ONE_CALL_A_TURN:
        calls = [HARD_CALL]
    if FORMS[stem] == "seed_oss":
        calls = [WEATHER_CALL]  # its template writes lists as Python does, which the grammar does not
    written, _ = written_turn(stem, calls)
    begin = min(at for mark in (*form.tools.openings, *form.tools.first_openings) if (at := written.find(mark)) >= 0)
    assert accepts(form.tools.grammar(TOOLS, parallel=True), written[begin:].rstrip())


@every_form
def test_where_the_prompt_opens_reasoning_is_known(stem: str) -> None:
    for variables, opens in (
        ({}, OPENS_REASONING),
        ({"enable_thinking": True, "thinking": True}, OPENS_REASONING_WHEN_ASKED),
        ({"enable_thinking": False, "thinking": False}, OPENS_REASONING & {"MiniMax-M2", "NVIDIA-Nemotron-Nano-v2"}),
    ):
        prompt = renderer(stem).render(Chat(messages=[USER], template_variables=variables))
        assert prompt.opens_reasoning == (stem in opens), variables


@pytest.mark.parametrize("calls", [[HARD_CALL], [WEATHER_CALL, HARD_CALL]], ids=["one call", "two calls"])
def test_our_own_tool_block_is_read_as_it_is_written(calls: list[tuple[str, Any]]) -> None:
    text = tool_calls_as_text(
        "Let me see.", [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    )
    form = TOOL_FORMATS[OWN_BLOCK]
    answer = read_answer(tagged(form), list(text))
    assert (answer.text, answer.arguments) == ("Let me see.", calls)
    assert accepts(form.grammar(TOOLS, parallel=True), text.removeprefix("Let me see.\n"))


@pytest.mark.parametrize("stem", ["deepseek-ai-DeepSeek-V3.1", "google-gemma-2-2b-it"])
def test_a_template_that_shows_no_tools_gets_our_own_form(stem: str) -> None:
    assert renderer(stem).answer_format.tool_format == "hermes"
