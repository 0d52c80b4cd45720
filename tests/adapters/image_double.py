"""What stands for an image in a prompt, in small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Placeholders:
    """An `ImageTokens` of `size` placeholders from `first` on, between the tokens `before` and `after`.

    `align`: what comes before is repeated until the placeholders begin at a multiple of it.
    """

    text_alias: str
    first: int
    size: int = 3
    before: int = 60
    after: int = 62
    align: int = 0

    @property
    def depends_on_place(self) -> bool:
        return self.align > 0

    def token_list_at(self, position: int) -> Sequence[int]:
        pad = -(position + 1) % self.align if self.align else 0
        return [*[self.before] * (pad + 1), *range(self.first, self.first + self.size), self.after]

    def places(self, token_ids: Sequence[int]) -> Sequence[int]:
        return [at for at, token_id in enumerate(token_ids) if token_id == self.first]
