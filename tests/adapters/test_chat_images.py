"""Images in rendered chats. Text is bytes here; an image is three tokens from a million on, in angle brackets."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from image_double import Placeholders

from exllamav3_adapters.chat_images import Images, digest_of, find_images, new_alias
from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.chat_template import compile_chat_template
from exllamav3_adapters.contract import Chat, Prompt, PromptImage
from exllamav3_adapters.conversation_tokens import Piece
from exllamav3_adapters.errors import InvalidRequest

TEMPLATES = Path(__file__).parents[3] / "shared" / "chat_templates"
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
PARTS = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}
{%- else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"""
JSON = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
CAT, DOG = b"a cat", b"a dog"
NOW = datetime(2026, 5, 4)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "data": data}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def prepared(*files: bytes, **options: Any) -> Images:
    return {
        digest_of(data): Placeholders(text_alias=new_alias(), first=10**6 * (number + 1), **options)
        for number, data in enumerate(files)
    }


def renderer(source: str) -> ChatRenderer:
    return ChatRenderer(compile_chat_template(source, "test.jinja"), {}, lambda text: list(text.encode()))


def render(source: str, *messages: Any, images: Images | None) -> Prompt:
    return renderer(source).render(Chat(messages=messages), images)


def shown(prompt: Prompt) -> str:
    """The prompt with a placeholder as a digit, that of its image."""
    return "".join(chr(token) if token < 256 else str(token // 10**6) for token in prompt.token_ids)


def test_an_image_stands_where_its_part_stood() -> None:
    prompt = render(PARTS, user(words("a"), image(CAT), words("b")), images=prepared(CAT))
    assert shown(prompt) == "<user>a<111>b"
    assert prompt.images == (PromptImage(digest=digest_of(CAT), start=8),)
    assert prompt.num_lasting_tokens == 8


def test_an_image_is_a_line_for_a_template_that_takes_strings() -> None:
    prompt = render(PLAIN, user(image(CAT), words("What is it?")), images=prepared(CAT))
    assert shown(prompt) == "<user><111>\nWhat is it?\n<assistant>"


def test_a_template_that_writes_json_keeps_the_image() -> None:
    assert "<111>" in shown(render(JSON, user(image(CAT)), images=prepared(CAT)))


def test_images_are_told_in_the_order_of_the_prompt() -> None:
    chat = [user(image(DOG)), {"role": "assistant", "content": "A dog."}, user(image(CAT), image(DOG))]
    prompt = render(PARTS, *chat, images=prepared(CAT, DOG))
    assert [found.digest for found in prompt.images] == [digest_of(DOG), digest_of(CAT), digest_of(DOG)]
    assert shown(prompt) == "<user><222><assistant>A dog.<user><111><222>"


def test_a_tool_may_answer_with_an_image() -> None:
    result = {"role": "tool", "tool_call_id": "x", "content": [image(CAT)]}
    assert "<111>" in shown(render(PLAIN, user(words("look")), result, images=prepared(CAT)))


def test_an_image_that_the_template_leaves_out_is_refused() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = [
        user(words("look")),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": [image(CAT)]},
    ]
    source = "{% for m in messages if 'tool_response' not in m.content %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequest, match="shows 0 of the chat's 1 images"):
        render(source, *chat, images=prepared(CAT))


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_an_image_belongs_to_the_user_or_a_tool(role: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"messages\[0\]\.content\[0\] is an image in an? {role} message"):
        render(PLAIN, {"role": role, "content": [image(CAT)]}, user(words("hi")), images=prepared(CAT))


def test_a_model_that_reads_images_names_them_where_it_refuses_other_media() -> None:
    with pytest.raises(InvalidRequest, match="takes text and images only"):
        render(PLAIN, user({"type": "input_audio"}), images={})


def test_a_model_without_vision_refuses_an_image_as_before() -> None:
    with pytest.raises(InvalidRequest, match="is of type 'image', but this model takes text only"):
        render(PLAIN, user(image(CAT)), images=None)


def test_an_alias_cannot_be_guessed() -> None:
    assert len({new_alias() for _ in range(100)}) == 100
    assert len(new_alias()) == len("image") + 32


def test_a_follow_up_keeps_the_answers_tokens_behind_an_image() -> None:
    once, images = renderer(PARTS), prepared(CAT)
    first = once.render(Chat(messages=[user(image(CAT), words("What is it?"))]), images)
    once.conversations.remember(first.token_ids, [Piece((65, 300), "<assistant>A cat.")])
    chat = [user(image(CAT), words("What is it?")), {"role": "assistant", "content": "A cat."}, user(words("And now?"))]
    later = once.render(Chat(messages=chat), images)
    assert later.token_ids[: len(first.token_ids) + 2] == (*first.token_ids, 65, 300)
    assert later.images == first.images


def test_tokens_that_depend_on_their_place_are_made_for_it() -> None:
    for start in range(4):
        prompt = render(PARTS, user(words("x" * start), image(CAT)), images=prepared(CAT, align=4))
        assert prompt.images[0].start % 4 == 0


def test_a_head_is_the_same_with_and_without_an_image() -> None:
    system = {"role": "system", "content": "You are a careful clerk."}
    plain = render(PLAIN, system, user(words("hello")), images={})
    pictured = render(PLAIN, system, user(image(CAT)), images=prepared(CAT))
    assert pictured.num_head_tokens == plain.num_head_tokens > 0


def test_files_are_found_once_by_what_is_in_them() -> None:
    chat = [user(image(DOG), image(CAT)), {"role": "assistant", "content": None}, user(image(CAT), 3), "no message"]
    assert list(find_images(chat).values()) == [DOG, CAT]  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_real_templates_show_every_image_in_its_place(path: Path) -> None:
    chat = [
        user(words("probeleft"), image(CAT), words("proberight")),
        {"role": "assistant", "content": "A cat."},
        user(image(DOG)),
    ]
    text = shown(real_renderer(path).render(Chat(messages=chat), prepared(CAT, DOG)))
    assert text.index("probeleft") < text.index("<111>") < text.index("proberight") < text.index("<222>")


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("Qwen3.5-4B", "<|vision_start|><|image_pad|><|vision_end|>"),
        ("Mistral-Small-3.2-24B-Instruct-2506", "[IMG]"),
        ("google-gemma-4-31B-it", "<|image|>"),
    ],
)
def test_an_image_stands_where_the_templates_own_mark_would(name: str, mark: str) -> None:
    path = TEMPLATES / f"{name}.jinja"
    if not path.is_file():
        pytest.skip("there are no templates of real models in ../shared/chat_templates")
    content = [words("Look: "), image(CAT), words("What is it?")]
    own = compile_chat_template(path.read_text(), path.name).default.render(
        [{"role": "user", "content": [words("Look: "), {"type": "image"}, words("What is it?")]}],
        None,
        SPECIAL_TOKENS,
        now=NOW,
    )
    ours = shown(real_renderer(path).render(Chat(messages=[user(*content)]), prepared(CAT)))
    assert own.text.count(mark) == 1
    assert ours == own.text.replace(mark, "<111>")


def real_renderer(path: Path) -> ChatRenderer:
    template = compile_chat_template(path.read_text(), path.name)
    return ChatRenderer(template, SPECIAL_TOKENS, lambda text: list(text.encode()), now=lambda: NOW)
