"""Images through the proxy, from the real clients, to a fake engine that answers which ones it was shown."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import httpx
import openai
import pytest
from picture import BLUE, GREEN, RED, bomb, image_file
from proxy_process import FAKE, Proxy, config, openai_client

from exllamav3_adapters.chat_images import digest_of
from exllamav3_adapters.fake.images import placeholders

CAT, DOG = image_file(RED, (8, 6)), image_file(GREEN, (4, 4), kind="JPEG")
SHOWN_CAT, SHOWN_DOG = placeholders(digest_of(CAT), 8, 6), placeholders(digest_of(DOG), 4, 4)
LONG = "The clerk writes down what he sees. " * 20


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """`eyes` reads images, small ones, at most three; `blind` does not."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "cat.png").write_bytes(CAT)
    (folder / "secret.png").write_bytes(DOG)
    capture = {"min_conversations": 2, "min_tokens": 64, "flush_seconds": 0.1}
    eyes = {
        **FAKE,
        "model": {**FAKE["model"], "vision": True},
        "memory": {"aging_lfu": True, "aging_capture_prefixes": True, "aging_prefix_min_tokens": 256},
        "images": {
            "max_mebibytes": 0.01,
            "max_pixels": 10_000,
            "max_images": 3,
            "allowed_folders": ["pictures"],
        },
        "capture": capture,
    }
    proxy = Proxy(folder, config({"eyes": eyes, "blind": FAKE}))
    try:
        proxy.start()
        proxy.warm_up()
        yield proxy
    finally:
        proxy.clean_up()


@pytest.fixture
def client(proxy: Proxy) -> openai.OpenAI:
    return openai_client(proxy)


@pytest.fixture
def claude(proxy: Proxy) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=proxy.base_url, api_key=proxy.master_key, max_retries=0, timeout=30)


def data_url(data: bytes, media: str = "image/png") -> str:
    return f"data:{media};base64,{base64.b64encode(data).decode()}"


def part(url: str | bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url if isinstance(url, str) else data_url(url)}}


def block(data: bytes, media: str = "image/png") -> dict[str, Any]:
    source = {"type": "base64", "media_type": media, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def text(words: str = "see: images") -> dict[str, Any]:
    return {"type": "text", "text": f"\n{words}\n"}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def ask(client: openai.OpenAI, messages: list[dict[str, Any]]) -> list[str]:
    """The answer whole, and streamed."""
    request: dict[str, Any] = {"model": "eyes", "messages": messages}
    whole = client.chat.completions.create(**request).choices[0].message.content
    chunks = client.chat.completions.create(**request, stream=True)
    return [str(whole), "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)]


def test_a_chat_shows_its_images_in_their_order(client: openai.OpenAI) -> None:
    assert ask(client, user(part(DOG), text(), part(CAT))) == [f"{SHOWN_DOG} {SHOWN_CAT}"] * 2


def test_an_earlier_turns_image_is_shown_again(client: openai.OpenAI) -> None:
    chat = [*user(part(CAT), text("hello")), {"role": "assistant", "content": "A cat."}, *user(text())]
    assert ask(client, chat) == [SHOWN_CAT] * 2


def test_another_image_is_another_answer_and_the_same_is_cached(client: openai.OpenAI) -> None:
    def answer(data: bytes) -> tuple[str, int]:
        found = client.chat.completions.create(model="eyes", messages=user(part(data), text("look"), text(LONG)))  # type: ignore[arg-type]
        details = found.usage.prompt_tokens_details if found.usage is not None else None
        return str(found.choices[0].message.content), (details.cached_tokens or 0) if details is not None else 0

    (cat, cached), (dog, cached_dog), (again, cached_again) = answer(CAT), answer(DOG), answer(CAT)
    assert cat == again != dog
    assert cached == cached_dog == 0
    assert cached_again >= 512


def test_a_tools_result_may_be_an_image(client: openai.OpenAI) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "screenshot", "arguments": "{}"}}
    chat = [
        *user(text("look")),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [part(CAT)]},
        *user(text()),
    ]
    assert ask(client, chat) == [SHOWN_CAT] * 2


def test_anthropics_image_blocks(claude: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {
        "model": "eyes",
        "max_tokens": 200,
        "messages": user(block(CAT), text(), block(DOG, "image/jpeg")),
    }
    whole = claude.messages.create(**request)
    with claude.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert [answer.content[0].text for answer in (whole, streamed)] == [f"{SHOWN_CAT} {SHOWN_DOG}"] * 2  # type: ignore[union-attr]


def test_an_image_in_anthropics_tool_result(claude: anthropic.Anthropic) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "screenshot", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [text("here"), block(CAT)]}, text()],
        },
    ]
    answer = claude.messages.create(model="eyes", max_tokens=200, messages=messages)
    assert answer.content[0].text == SHOWN_CAT  # type: ignore[union-attr]


def test_images_of_responses(client: openai.OpenAI) -> None:
    content = [{"type": "input_image", "image_url": data_url(DOG)}, {"type": "input_text", "text": "\nsee: images"}]
    request: dict[str, Any] = {"model": "eyes", "input": [{"role": "user", "content": content}]}
    assert client.responses.create(**request).output_text == SHOWN_DOG
    events = list(client.responses.create(**request, stream=True))
    assert events[-1].response.output_text == SHOWN_DOG


def test_a_tools_image_in_responses(client: openai.OpenAI) -> None:
    items: list[Any] = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c", "name": "screenshot", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": data_url(CAT)}],
        },
        {"role": "user", "content": "see: images"},
    ]
    assert client.responses.create(model="eyes", input=items).output_text == SHOWN_CAT


def test_counting_counts_the_image(proxy: Proxy, claude: anthropic.Anthropic) -> None:
    messages: Any = user(block(CAT), text("hi"))
    counted = claude.messages.count_tokens(model="eyes", messages=messages)
    answered = claude.messages.create(model="eyes", max_tokens=5, messages=messages)
    assert counted.input_tokens == answered.usage.input_tokens


def test_a_file_in_an_allowed_folder(proxy: Proxy, client: openai.OpenAI) -> None:
    assert ask(client, user(part(f"file://{proxy.folder}/pictures/cat.png"), text())) == [SHOWN_CAT] * 2


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://example.invalid/cat.png", "not fetched from the web"),
        ("file:///etc/passwd", "names no file in a folder"),
        ("file://{folder}/pictures/../secret.png", "names no file in a folder"),
        ("data:application/pdf;base64,AAAA", "media type must be image/png"),
        ("data:image/png;base64,????", "not valid base64"),
        ("data:image/png;base64,AAAA", "image 1 of the chat is no PNG"),
        (data_url(CAT[:40]), "image 1 of the chat is"),
        (data_url(bomb(30_000, 30_000)), "far more than the 10000 pixels"),
        (data_url(image_file(size=(200, 100))), "200 x 100 pixels, and 10000 are taken"),
        (data_url(b"x" * 20_000), "larger than the 0.01 MiB"),
        ("cat.png", "must be a data URL"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_image_that_cannot_be_read_is_a_400_that_says_why(proxy: Proxy, url: str, says: str, stream: bool) -> None:
    body = {"model": "eyes", "messages": user(part(url.format(folder=proxy.folder)), text()), "stream": stream}
    answer = httpx.post(f"{proxy.base_url}/v1/chat/completions", json=body, headers=proxy.headers, timeout=30)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


def test_nobody_fetches_a_clients_url(proxy: Proxy) -> None:
    """Nor does LiteLLM, which could be made to ask servers that only the proxy reaches."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            asked.append(self.client_address)
            super().handle()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/cat.png"
        source = {"type": "url", "url": url}
        for path, messages in (
            ("/v1/chat/completions", user(part(url), text())),
            ("/v1/messages", user({"type": "image", "source": source}, text())),
        ):
            for model, stream in (("eyes", False), ("eyes", True), ("blind", False), ("blind", True)):
                body = {"model": model, "messages": messages, "stream": stream, "max_tokens": 5}
                answer = httpx.post(f"{proxy.base_url}{path}", json=body, headers=proxy.headers, timeout=30)
                assert answer.status_code == 400, answer.text
        server.shutdown()
    assert asked == []


def test_too_many_images_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="4 images and 3 are taken"):
        ask(client, user(*[part(CAT)] * 4))


def test_an_image_outside_of_users_and_tools_messages_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="there is an image in system"):
        ask(client, [{"role": "system", "content": [part(CAT)]}, *user(text())])


def test_anthropics_error_names_the_fault(claude: anthropic.Anthropic) -> None:
    messages: Any = user(block(b"no image"), text())
    with pytest.raises(anthropic.BadRequestError, match="image 1 of the chat is no PNG"):
        claude.messages.create(model="eyes", max_tokens=5, messages=messages)


def test_a_model_without_vision_refuses_images_as_before(proxy: Proxy) -> None:
    body = {"model": "blind", "messages": user(part(CAT), text())}
    answer = httpx.post(f"{proxy.base_url}/v1/chat/completions", json=body, headers=proxy.headers, timeout=30)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "messages[0].content[0]: this model reads text only, not images; remove the part." in message


def test_the_model_lists_tell_who_has_vision(proxy: Proxy) -> None:
    answer = httpx.get(f"{proxy.base_url}/model/info", headers=proxy.headers, timeout=30).json()
    found = {row["model_name"]: row["model_info"].get("supports_vision") for row in answer["data"]}
    assert (found["eyes"], found["blind"]) == (True, False)


def test_a_hot_head_is_kept_and_no_image_with_it(proxy: Proxy, client: openai.OpenAI) -> None:
    def state() -> bytes:
        return b"".join(file.read_bytes() for file in (proxy.folder / "state").rglob("*") if file.is_file())

    head = "You are the clerk of pictures. " * 20
    picture = image_file(BLUE, (5, 5))
    for number in range(3):
        ask(client, [{"role": "system", "content": head}, *user(part(picture), text(f"look, {number}. {LONG}"))])
    proxy.wait_until(lambda: head[:60].encode() in state(), 10, "the head to be on disk")
    kept = state()
    for form in (picture, base64.b64encode(picture), placeholders(digest_of(picture), 5, 5).encode()):
        assert form not in kept
