"""Where a chat's images come from: data URLs, and files in the folders that the operator allows."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from exllamav3_adapters.contract import Chat, Message
from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.images_section import ImagesSection

MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif", "image/bmp", "image/x-ms-bmp")
"""Of data URLs. What the file really is shows when it is decoded."""
_MEBIBYTE: Final = 1 << 20
_DATA_URL: Final = re.compile(r"data:(?P<media>[^;,]*)(?P<parameters>(?:;[^;,]*)*),", re.IGNORECASE)
_MAX_HEADER: Final = 256
_PIECE: Final = 1 << 18
"""Characters of base64, a multiple of four."""


def image_part(url: Any, where: str) -> dict[str, Any]:
    """A part whose image is still to be read. Raises `InvalidRequest`."""
    if isinstance(url, Mapping):
        url, where = url.get("url"), f"{where}.url"
    if not isinstance(url, str) or not url:
        raise InvalidRequest(f"{where} must be the image's URL, as text.", where)
    return {"type": "image_url", "url": url, "where": where}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSources:
    """One model's limits."""

    max_bytes: int
    max_images: int
    allowed_folders: tuple[Path, ...]

    @classmethod
    def of(cls, section: ImagesSection) -> ImageSources:
        return cls(
            max_bytes=int(section.max_mebibytes * _MEBIBYTE),
            max_images=section.max_images,
            allowed_folders=tuple(map(Path, section.allowed_folders)),
        )

    async def read(self, chat: Chat) -> Chat:
        """The chat with the bytes of its images, in the contract's form; the same object where it has none.

        Reads and decodes on a thread. Raises `InvalidRequest`, which names the place.
        """
        num_images = sum(_is_unread(part) for message in chat.messages for part in _parts(message))
        if not num_images:
            return chat
        if num_images > self.max_images:
            raise InvalidRequest(
                f"the chat has {num_images} images and {self.max_images} are taken; leave out those of earlier turns.",
                "messages",
            )
        return await asyncio.to_thread(self._read, chat)

    def _read(self, chat: Chat) -> Chat:
        return replace(chat, messages=[self._read_message(message) for message in chat.messages])

    def _read_message(self, message: Message) -> Message:
        if not any(map(_is_unread, _parts(message))):
            return message
        parts = [self._read_part(part) if _is_unread(part) else part for part in _parts(message)]
        return {**message, "content": parts}

    def _read_part(self, part: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "image", "data": self.bytes_of(part["url"], part["where"])}

    def bytes_of(self, url: str, where: str) -> bytes:
        """The file behind the URL. Blocks. Raises `InvalidRequest`."""
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            return self._from_data(url, where)
        if scheme == "file":
            return self._from_file(url, where)
        if scheme in ("http", "https"):
            raise InvalidRequest(
                f"{where}: images are not fetched from the web; send this one as a data URL, data:image/png;base64,...",
                where,
            )
        raise InvalidRequest(f"{where} must be a data URL, such as data:image/png;base64,...", where)

    def _from_data(self, url: str, where: str) -> bytes:
        found = _DATA_URL.match(url[:_MAX_HEADER])
        if found is None:
            raise InvalidRequest(f"{where} is no data URL; send data:image/png;base64,...", where)
        if found["media"].strip().lower() not in MEDIA_TYPES:
            raise InvalidRequest(
                f"{where}: its media type must be image/png, image/jpeg, image/webp, image/gif or image/bmp.", where
            )
        if not found["parameters"].lower().endswith(";base64"):
            raise InvalidRequest(f"{where} must hold the image in base64: data:image/png;base64,...", where)
        text = url[found.end() :]
        self._check_size(len(text) * 3 // 4 - 2, where)
        try:
            data = _decoded(_plain_base64(text))
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"{where} is not valid base64; encode the image's file anew.", where) from None
        self._check_size(len(data), where)
        if not data:
            raise InvalidRequest(f"{where} holds no image: there is nothing after the comma.", where)
        return data

    def _from_file(self, url: str, where: str) -> bytes:
        if not self.allowed_folders:
            raise InvalidRequest(f"{where}: file URLs are not taken here; send the image as a data URL.", where)
        try:
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
                raise ValueError
            file = Path(unquote(parts.path)).resolve(strict=True)
            if not any(file.is_relative_to(folder.resolve()) for folder in self.allowed_folders):
                raise ValueError
            data = _read_file(file, self.max_bytes + 1)
        except (OSError, RuntimeError, ValueError):
            # One answer for all: who may not read a folder is not told either what is in it.
            raise InvalidRequest(
                f"{where} names no file in a folder that images may be read from (images.allowed_folders).", where
            ) from None
        self._check_size(len(data), where)
        return data

    def _check_size(self, num_bytes: int, where: str) -> None:
        if num_bytes > self.max_bytes:
            raise InvalidRequest(
                f"{where} is larger than the {self.max_bytes / _MEBIBYTE:.3g} MiB that an image may have; send a "
                "smaller one.",
                where,
            )


def _plain_base64(text: str) -> bytes:
    """Without what clients also send: escapes, line breaks, the alphabet for URLs, no padding."""
    data = text.encode("ascii")
    if b"%" in data:
        data = unquote_to_bytes(data)
    for white in (b"\n", b"\r", b" ", b"\t"):
        data = data.replace(white, b"")
    data = data.replace(b"-", b"+").replace(b"_", b"/").rstrip(b"=")
    return data + b"=" * (-len(data) % 4)


def _decoded(data: bytes) -> bytes:
    """Piece by piece: one call holds the interpreter for as long as it takes, and the proxy's loop with it."""
    starts = range(0, len(data), _PIECE)
    return b"".join(base64.b64decode(data[start : start + _PIECE], validate=True) for start in starts)


def _read_file(file: Path, most: int) -> bytes:
    """At most so many bytes of a regular file; it was resolved, so a link in its place came after that."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        return opened.read(most)


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_unread(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"
