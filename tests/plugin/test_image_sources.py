"""Images of a chat's URLs: which are read, how much of them, and what their sender is told otherwise."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.contract import Chat
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.chat_request import read_chat
from litellm_exllamav3.image_sources import ImageSources
from litellm_exllamav3.images_section import ImagesSection

FILE = bytes(range(256))
CODED = base64.b64encode(FILE).decode()


def sources(**options: Any) -> ImageSources:
    return ImageSources.of(ImagesSection(**options))


def read(url: str, **options: Any) -> bytes:
    return sources(**options).bytes_of(url, "here")


def refusal(url: str, **options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(url, **options)
    assert caught.value.param == "here"
    assert len(url) < 40 or url[30:] not in caught.value.message
    return caught.value.message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "pictures"
    (found / "of cats").mkdir(parents=True)
    (found / "of cats" / "a.png").write_bytes(FILE)
    (tmp_path / "secret.png").write_bytes(b"secret")
    return found


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{CODED}",
        f"data:image/JPEG;base64,{CODED}",
        f"DATA:image/webp;charset=x;BASE64,{CODED}",
        f"data:image/gif;base64,{CODED[:60]}\r\n{CODED[60:]}\n",
        f"data:image/bmp;base64,{CODED.rstrip('=')}",
        f"data:image/png;base64,{CODED.replace('+', '-').replace('/', '_')}",
        f"data:image/png;base64,{CODED.replace('+', '%2B').replace('=', '%3D')}",
    ],
)
def test_a_data_url_is_read_however_clients_write_it(url: str) -> None:
    assert read(url) == FILE


def test_a_large_image_is_decoded_whole() -> None:
    data = os.urandom(3_000_001)
    assert read(f"data:image/png;base64,{base64.b64encode(data).decode()}") == data


@pytest.mark.parametrize("media", ["", "text/plain", "application/pdf", "image/svg+xml", "video/mp4"])
def test_other_media_types_are_refused(media: str) -> None:
    assert "media type must be image/png" in refusal(f"data:{media};base64,{CODED}")


@pytest.mark.parametrize("text", ["abc*", "a", "\u00e9\u00e9\u00e9\u00e9", "ab=cd"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    assert "not valid base64" in refusal(f"data:image/png;base64,{text}")


def test_a_data_url_must_be_in_base64_and_hold_something() -> None:
    assert "must hold the image in base64" in refusal("data:image/png,%89PNG")
    assert "nothing after the comma" in refusal("data:image/png;base64,")
    assert "no data URL" in refusal("data:image/png;base64")


def test_an_image_may_be_as_large_as_the_setting_says(folder: Path) -> None:
    limit = 256 / (1 << 20)
    assert read(f"data:image/png;base64,{CODED}", max_mebibytes=limit) == FILE
    longer = base64.b64encode(FILE + b"x").decode()
    assert "MiB that an image may have" in refusal(f"data:image/png;base64,{longer}", max_mebibytes=limit)
    one_less = 255 / (1 << 20)
    url = f"file://{folder}/of%20cats/a.png"
    assert "MiB that an image may have" in refusal(url, max_mebibytes=one_less, allowed_folders=(str(folder),))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a.png", "HTTPS://example.invalid/a.png"])
def test_nothing_is_fetched_from_the_web(url: str) -> None:
    assert "not fetched from the web" in refusal(url)


@pytest.mark.parametrize("url", ["a.png", "/etc/passwd", "ftp://host/a.png", "javascript:x", CODED])
def test_another_url_is_refused(url: str) -> None:
    assert "must be a data URL" in refusal(url)


def test_files_are_refused_unless_the_operator_allows_their_folder(folder: Path) -> None:
    url = f"file://{folder}/of%20cats/a.png"
    assert "file URLs are not taken here" in refusal(url)
    assert read(url, allowed_folders=(str(folder),)) == FILE
    assert read(url.replace("file://", "file://localhost"), allowed_folders=(str(folder),)) == FILE
    assert "names no file" in refusal(url, allowed_folders=(str(folder / "of dogs"),))


def test_no_path_leads_out_of_an_allowed_folder(folder: Path) -> None:
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "up").symlink_to(folder.parent)
    (folder.parent / "pictures2").mkdir()
    (folder.parent / "pictures2" / "b.png").write_bytes(b"b")
    os.mkfifo(folder / "pipe.png")
    for path in (
        f"{folder}/../secret.png",
        f"{folder}/%2e%2e/secret.png",
        f"{folder}/of%20cats/../../secret.png",
        f"{folder}/link.png",
        f"{folder}/up/secret.png",
        f"{folder}2/b.png",
        f"{folder}/pipe.png",
        f"{folder}/of%20cats",
        f"{folder}/missing.png",
        f"{folder}/of%20cats/a.png%00.txt",
        f"{folder}/of%20cats/a.png?x",
    ):
        assert "names no file in a folder" in refusal(f"file://{path}", allowed_folders=(str(folder),))
    assert "names no file" in refusal(f"file://elsewhere{folder}/of%20cats/a.png", allowed_folders=(str(folder),))


def test_an_allowed_folder_may_itself_be_a_link(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert read(f"file://{link}/of%20cats/a.png", allowed_folders=(str(link),)) == FILE


def chat_of(*parts: Any, role: str = "user") -> Chat:
    return read_chat([{"role": role, "content": list(parts)}], {}, with_images=True)


def picture(url: Any = f"data:image/png;base64,{CODED}") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


async def test_a_chats_images_become_bytes_in_their_places() -> None:
    words = {"type": "text", "text": "see"}
    chat = await sources().read(chat_of(words, picture(), {"type": "input_image", "image_url": picture()["image_url"]}))
    image = {"type": "image", "data": FILE}
    assert chat.messages[0]["content"] == [words, image, image]


async def test_a_chat_without_images_is_left_alone() -> None:
    chat = read_chat([{"role": "user", "content": "hi"}], {}, with_images=True)
    assert await sources().read(chat) is chat


async def test_a_refusal_names_the_place_of_the_image() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await sources().read(chat_of({"type": "text", "text": "x"}, picture("http://example.invalid/a.png")))
    assert caught.value.param == "messages[0].content[1].image_url.url"


async def test_a_chat_may_have_as_many_images_as_the_setting_says() -> None:
    chat = chat_of(*[picture()] * 3)
    assert len((await sources(max_images=3).read(chat)).messages[0]["content"]) == 3
    with pytest.raises(InvalidRequest, match="3 images and 2 are taken"):
        await sources(max_images=2).read(chat)


@pytest.mark.parametrize("url", [None, "", 5, {}, {"url": 5}, {"url": ""}, ["x"]])
def test_an_image_part_without_a_url_is_refused(url: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be the image's URL"):
        chat_of({"type": "image_url", "image_url": url})


def test_a_model_with_vision_says_so_where_it_refuses_other_media() -> None:
    with pytest.raises(InvalidRequest, match="reads text and images only, not audio; remove the part"):
        chat_of({"type": "input_audio"})
    with pytest.raises(InvalidRequest, match="send the image as a part of type 'image_url'"):
        chat_of({"type": "image", "image": "x"})
    with pytest.raises(InvalidRequest, match="must be 'text' or 'image_url'"):
        chat_of({"type": "hologram"})
