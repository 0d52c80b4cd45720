"""Files become pictures as people see them, or a refusal that says which image and why."""

from __future__ import annotations

import pytest
from picture import BLUE, GREEN, RED, animation, bomb, encoded, image_file, turned_jpeg
from PIL import Image

from exllamav3_adapters.errors import InvalidRequest
from exllamav3_adapters.image_file import decode_image

MANY = 1_000_000


def pixel(data: bytes, x: int = 0, y: int = 0) -> tuple[int, ...]:
    image = decode_image(data, 1, MANY)
    assert image.mode == "RGB"
    found = image.getpixel((x, y))
    assert isinstance(found, tuple)
    return found


def refusal(data: bytes, max_pixels: int = MANY) -> str:
    with pytest.raises(InvalidRequest) as caught:
        decode_image(data, 2, max_pixels)
    assert caught.value.param == "messages"
    assert caught.value.message.startswith("image 2 of the chat ")
    return caught.value.message


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "BMP"])
def test_a_picture_is_decoded_from_each_format(kind: str) -> None:
    red, green, blue = pixel(image_file(kind=kind))
    assert (red > 250, green < 5, blue < 5) == (True, True, True)


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("L", 200, (200, 200, 200)),
        ("1", 1, (255, 255, 255)),
        ("RGBA", (0, 0, 255, 255), BLUE),
        ("I;16", 0x8000, (128, 128, 128)),
    ],
)
def test_every_mode_becomes_colour(mode: str, color: object, expected: tuple[int, ...]) -> None:
    assert pixel(image_file(color, mode=mode)) == expected


def test_a_jpeg_of_printing_inks_becomes_colour() -> None:
    assert pixel(image_file((0, 0, 0, 0), mode="CMYK", kind="JPEG"))[0] > 250


def test_what_is_transparent_is_white() -> None:
    assert pixel(image_file((10, 20, 30, 0), mode="RGBA")) == (255, 255, 255)


def test_a_palette_may_have_a_transparent_colour() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([9, 9, 9, *RED])
    assert pixel(encoded(image, transparency=0)) == (255, 255, 255)


def test_a_camera_that_was_held_upright_is_turned() -> None:
    image = decode_image(turned_jpeg(), 1, MANY)
    assert image.size == (8, 16)
    assert pixel(turned_jpeg(), 4, 2)[0] > 200
    assert pixel(turned_jpeg(), 4, 13)[2] > 200


def test_an_animation_is_its_first_picture() -> None:
    assert pixel(animation()) == GREEN


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    message = refusal(bomb(30_000, 30_000), max_pixels=50_000_000)
    assert "50000000" in message
    assert "30000 x 2500 pixels" in refusal(bomb(30_000, 2500), max_pixels=50_000_000)


def test_a_size_at_the_limit_is_taken() -> None:
    data = image_file(size=(100, 10))
    assert decode_image(data, 1, 1000).size == (100, 10)
    assert "100 x 10 pixels, and 999 are taken" in refusal(data, max_pixels=999)


@pytest.mark.parametrize("data", [b"", b"no image", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7\n"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    assert "no PNG, JPEG, WebP, GIF or BMP" in refusal(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_half_a_file_is_refused(kind: str) -> None:
    data = encoded(Image.effect_noise((64, 64), 80).convert("RGB"), kind)
    assert refusal(data[: len(data) // 2])


def test_formats_that_pillow_knows_beside_are_not_tried() -> None:
    assert "no PNG" in refusal(encoded(Image.new("RGB", (4, 4)), "TIFF"))
