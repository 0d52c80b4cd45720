"""Image files as clients send them, decoded: damaged, huge, turned, animated and transparent ones among them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from exllamav3_adapters.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""All that Pillow may try: its other decoders are for files that no client sends, and have the worse record."""
_BACKGROUND: Final = (255, 255, 255, 255)
"""What is behind transparent pixels: screenshots and drawings are dark on nothing more often than light."""


def decode_image(data: bytes, number: int, max_pixels: int) -> Image:
    """The picture as people see it: RGB, upright, on white where it is transparent, the first of an animation.

    `number` counts the chat's images from 1. Blocks for some tens of nanoseconds a pixel. The size is looked at before
    anything is decoded. Raises `InvalidRequest`.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image.width, image.height, number, max_pixels)
        image.load()
        return _as_rgb(ImageOps.exif_transpose(image))
    except (InvalidRequest, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise InvalidRequest(
            f"image {number} of the chat has far more than the {max_pixels} pixels that are taken; send a smaller one",
            "messages",
        ) from None
    except UnidentifiedImageError:
        raise InvalidRequest(
            f"image {number} of the chat is no PNG, JPEG, WebP, GIF or BMP file; send one of these, whole", "messages"
        ) from None
    except Exception as error:  # each decoder raises its own: OSError, SyntaxError, ValueError, struct.error, ...
        raise InvalidRequest(
            f"image {number} of the chat is damaged and cannot be decoded ({type(error).__name__}); send it again, or "
            "another",
            "messages",
        ) from None


def _check_size(width: int, height: int, number: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise InvalidRequest(
            f"image {number} of the chat has {width} x {height} pixels, and {max_pixels} are taken; send a smaller one",
            "messages",
        )


def _as_rgb(image: Image) -> Image:
    import PIL.Image

    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return PIL.Image.alpha_composite(PIL.Image.new("RGBA", layer.size, _BACKGROUND), layer).convert("RGB")
    if image.mode.startswith("I"):  # 16 bits a pixel, of which Pillow would clip all but the darkest
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("RGB")
