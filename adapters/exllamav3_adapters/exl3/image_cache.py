"""Images that the vision component has read, kept for the turns to come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An `ImageTokens` of exllamav3's. The ids of its placeholders are this process's alone: another image has them in
    the next one."""

    embedding: Any
    """An `MMEmbedding`."""

    @property
    def text_alias(self) -> str:
        return str(self.embedding.text_alias)

    @property
    def depends_on_place(self) -> bool:
        return bool(self.embedding.align)

    @property
    def num_bytes(self) -> int:
        tensors = [self.embedding.embeddings, *(self.embedding.deepstack_embeddings or ())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def token_list_at(self, position: int) -> Sequence[int]:
        token_ids: list[int] = self.embedding.token_list_at(position)
        return token_ids

    def places(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Within one place the ids ascend, whatever stands between them."""
        ids = np.asarray(token_ids, dtype=np.int64)
        own = np.flatnonzero((ids >= self.embedding.first_index) & (ids < self.embedding.last_index))
        begins = np.ones(own.size, dtype=bool)
        begins[1:] = ids[own[1:]] <= ids[own[:-1]]
        places: list[int] = own[begins].tolist()
        return places


def placeholders(images: Iterable[PreparedImage]) -> set[int]:
    """The ids that stand for rows of these images."""
    return {token_id for image in images for token_id in range(image.embedding.first_index, image.embedding.last_index)}


class ImageCache:
    """By the digest of the file, least recently used first. An image that a request still holds is found even after it
    had to go. Belongs to one loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[str, PreparedImage] = OrderedDict()
        self._alive: WeakValueDictionary[str, PreparedImage] = WeakValueDictionary()

    def __len__(self) -> int:
        """Images that are kept."""
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def get(self, digest: str) -> PreparedImage | None:
        image = self._alive.get(digest)
        if image is not None:
            self._keep(digest, image)
        return image

    def put(self, digest: str, image: PreparedImage) -> None:
        """The newest stays, however large it is: somebody is about to use it."""
        assert digest not in self._alive, "an image is prepared once while it is known"
        self._alive[digest] = image
        self._keep(digest, image)

    def _keep(self, digest: str, image: PreparedImage) -> None:
        if digest not in self._kept:
            self._kept[digest] = image
            self._num_bytes += image.num_bytes
        self._kept.move_to_end(digest)
        while self._num_bytes > self._max_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
