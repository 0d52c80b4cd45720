"""Images in a chat: where they stand, and the texts that stand for them while the chat is rendered.

A template is given a text part for each image, so that any template shows it in its place, whatever it knows of images;
the tokens that a model wants around an image come with its placeholders, as exllamav3's vision components make them.
The text is the image's secret alias: no client can write it, so nobody gets placeholders into a prompt but by sending
the image.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from exllamav3_adapters.chat_messages import PlainMessage
from exllamav3_adapters.contract import PromptImage
from exllamav3_adapters.errors import InvalidRequest


class ImageTokens(Protocol):
    """What stands for one image in a prompt: placeholders, and what the model wants around them."""

    @property
    def text_alias(self) -> str: ...
    @property
    def depends_on_place(self) -> bool:
        """Whether its tokens are others where they begin elsewhere in the prompt."""
        ...

    def token_list_at(self, position: int) -> Sequence[int]:
        """Its tokens, where they begin at `position` in the prompt."""
        ...

    def places(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Where its placeholders begin in a prompt."""
        ...


Images = Mapping[str, ImageTokens]
"""By the digest of the file."""


def new_alias() -> str:
    """Letters and digits alone: no template quotes or strips them."""
    return f"image{secrets.token_hex(16)}"


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def find_images(messages: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """The files of a chat's images by their digests, in their order. What has no such form is passed over: rendering
    refuses it."""
    return {digest_of(part["data"]): part["data"] for message in messages for part in _image_parts(message)}


def with_aliases(messages: Sequence[PlainMessage], images: Images) -> list[PlainMessage]:
    """A text part in place of each image. `images` must hold them all."""
    return [
        {**message, "content": [_aliased(part, images) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def count_images(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(1 for message in messages for _ in _image_parts(message))


def prompt_images(token_ids: Sequence[int], images: Images) -> tuple[PromptImage, ...]:
    """Where each image's placeholders begin."""
    found = [
        PromptImage(digest=digest, start=start) for digest, image in images.items() for start in image.places(token_ids)
    ]
    return tuple(sorted(found, key=lambda image: image.start))


def encode_with_images(text: str, images: Images, encode: Callable[[str], list[int]]) -> list[int]:
    """The text in tokens, an image's in place of its alias. `encode` tokenises what is between."""
    if not images:
        return encode(text)
    by_alias = {image.text_alias: image for image in images.values()}
    pieces = re.split(f"({'|'.join(map(re.escape, by_alias))})", text)
    token_ids: list[int] = []
    for piece in filter(None, pieces):
        image = by_alias.get(piece)
        token_ids += encode(piece) if image is None else image.token_list_at(len(token_ids))
    return token_ids


def refuse_hidden_images(num_sent: int, num_shown: int) -> None:
    """Raises `InvalidRequest` where a template left some out."""
    if num_shown < num_sent:
        raise InvalidRequest(
            f"the model's chat template shows {num_shown} of the chat's {num_sent} images; put them into user messages",
            "messages",
        )


def _image_parts(message: Any) -> Iterator[Mapping[str, Any]]:
    content = message.get("content") if isinstance(message, Mapping) else None
    for part in content if isinstance(content, list | tuple) else ():
        if isinstance(part, Mapping) and part.get("type") == "image" and isinstance(part.get("data"), bytes):
            yield part


def _aliased(part: Mapping[str, Any], images: Images) -> Mapping[str, Any]:
    if part["type"] != "image":
        return part
    return {"type": "text", "text": images[digest_of(part["data"])].text_alias}
