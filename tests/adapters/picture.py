"""Image files of many kinds, made on the spot."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def image_file(color: Any = RED, size: tuple[int, int] = (8, 6), *, mode: str = "RGB", kind: str = "PNG") -> bytes:
    return encoded(Image.new(mode, size, color), kind)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned_jpeg() -> bytes:
    """16 x 8 pixels that a camera held upright: red in its left half, which is the upper one to people."""
    image = Image.new("RGB", (16, 8), BLUE)
    image.paste(RED, (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turn it clockwise
    return encoded(image, "JPEG", exif=exif, quality=95, subsampling=0)


def animation() -> bytes:
    frames = [Image.new("RGB", (8, 6), color) for color in (GREEN, RED, BLUE)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=10)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that announces so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0" * 64)) + _chunk(b"IEND")


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
