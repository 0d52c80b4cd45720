"""A model's eyes: from the files of a chat's images to what stands for them in prompts and in the forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from exllamav3_adapters.chat_images import Images, count_images, find_images, new_alias
from exllamav3_adapters.contract import Chat, Prompt
from exllamav3_adapters.engine_settings import ImageOptions
from exllamav3_adapters.errors import EngineUnavailable, InvalidRequest, QueueFull
from exllamav3_adapters.exl3.image_cache import ImageCache, PreparedImage, placeholders
from exllamav3_adapters.image_file import decode_image

T = TypeVar("T")

_MEBIBYTE = 1 << 20
_MAX_AT_ONCE = 2
"""Images that are decoded and wait for the device: each may take some hundred MB."""
_RETRY_SECONDS = 1.0


class RunOnDevice(Protocol):
    """Runs a function on the thread that uses the device; told in the contract's errors."""

    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


class Vision:
    """Prepares images and keeps them. Its calls belong to the engine's loop; files are decoded on a thread of its own,
    and the component runs between two steps of the scheduler."""

    def __init__(self, component: Any, tokenizer: Any, options: ImageOptions, run_on_device: RunOnDevice) -> None:
        """`component`: exllamav3's, loaded. `tokenizer`: used on the device's thread alone."""
        self._component = component
        self._tokenizer = tokenizer
        self._max_pixels = options.max_pixels
        self._run_on_device = run_on_device
        self._cache = ImageCache(options.cache_mebibytes * _MEBIBYTE)
        self._preparing: dict[str, asyncio.Task[PreparedImage]] = {}
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._closed = False
        self._decode_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exllamav3-images")

    async def prepare(self, chat: Chat) -> Images:
        """All images of the chat. Raises `InvalidRequest` for one that cannot be read."""
        if not count_images(chat.messages):
            return {}
        # On the thread, since it hashes the files.
        files = await self._on_decode_thread(lambda: find_images(chat.messages))
        return {
            digest: await self._prepare(digest, data, number) for number, (digest, data) in enumerate(files.items(), 1)
        }

    def images_of(self, prompt: Prompt) -> list[PreparedImage]:
        """Those of a rendered prompt, each once. Raises `QueueFull` where one has gone since, or was prepared anew with
        other placeholders."""
        found = [self._cache.get(digest) for digest in dict.fromkeys(image.digest for image in prompt.images)]
        images = [image for image in found if image is not None]
        known = placeholders(images)
        if len(images) < len(found) or any(prompt.token_ids[image.start] not in known for image in prompt.images):
            raise QueueFull(
                "the images of other requests have taken the place of this one's before it began; send it again, or "
                "give them more room with images.cache_mebibytes",
                _RETRY_SECONDS,
            )
        return images

    def close(self) -> None:
        """What is being prepared meets the end of the scheduler, and says so to those who wait."""
        self._closed = True
        self._decode_thread.shutdown(wait=False)

    async def _prepare(self, digest: str, data: bytes, number: int) -> PreparedImage:
        """Two that want the same image wait for one: it must not have two sets of placeholders."""
        if (known := self._cache.get(digest)) is not None:
            return known
        task = self._preparing.get(digest)
        if task is None:
            task = self._preparing[digest] = asyncio.create_task(self._read(digest, data, number))
            task.add_done_callback(lambda done: self._forget(digest, done))
        return await asyncio.shield(task)

    def _forget(self, digest: str, task: asyncio.Task[PreparedImage]) -> None:
        del self._preparing[digest]
        if not task.cancelled():
            task.exception()  # everybody who wanted it may have left

    async def _read(self, digest: str, data: bytes, number: int) -> PreparedImage:
        async with self._places:
            picture = await self._on_decode_thread(lambda: decode_image(data, number, self._max_pixels))
            image = await self._run_on_device(lambda: PreparedImage(self._embed(picture, number)))
        self._cache.put(digest, image)
        return image

    async def _on_decode_thread(self, function: Callable[[], T]) -> T:
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        return await asyncio.get_running_loop().run_in_executor(self._decode_thread, function)

    def _embed(self, picture: Any, number: int) -> Any:
        try:
            return self._component.get_image_embeddings(self._tokenizer, picture, text_alias=new_alias())
        except (AssertionError, ValueError) as error:  # sides or proportions that a component does not take
            raise InvalidRequest(
                f"the model's vision component cannot take image {number} of the chat ({picture.width} x "
                f"{picture.height} pixels: {type(error).__name__}); send it in another size",
                "messages",
            ) from error
