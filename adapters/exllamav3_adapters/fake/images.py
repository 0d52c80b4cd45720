"""What the fake engine makes of an image: a short text with its digest, which stands in the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from exllamav3_adapters.chat_images import Images, find_images, new_alias
from exllamav3_adapters.contract import Chat
from exllamav3_adapters.engine_settings import ImageOptions
from exllamav3_adapters.image_file import decode_image


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeImage:
    """An `ImageTokens`."""

    text_alias: str
    placeholders: bytes

    @property
    def depends_on_place(self) -> bool:
        return False

    def token_list_at(self, position: int) -> Sequence[int]:
        return list(self.placeholders)

    def places(self, token_ids: Sequence[int]) -> Sequence[int]:
        prompt, found = bytes(token_ids), -1
        starts = []
        while (found := prompt.find(self.placeholders, found + 1)) >= 0:
            starts.append(found)
        return starts


def placeholders(digest: str, width: int, height: int) -> str:
    return f"[image {digest[:8]} {width}x{height}]"


async def prepare_images(chat: Chat, options: ImageOptions) -> Images:
    """Decodes them as a real engine does. Raises `InvalidRequest`."""
    prepared = {}
    for number, (digest, data) in enumerate(find_images(chat.messages).items(), start=1):
        image = await asyncio.to_thread(decode_image, data, number, options.max_pixels)
        text = placeholders(digest, image.width, image.height)
        prepared[digest] = FakeImage(text_alias=new_alias(), placeholders=text.encode())
    return prepared
