"""The section `images`: which images a model with a vision component takes, and from where."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from litellm_exllamav3.section import ConfigPath, Count, Positive, Section

MOST_PIXELS = 178_956_970
"""Beyond it Pillow refuses to open a file, as a decompression bomb."""


class ImagesSection(Section):
    """For `model.vision`. Images come as data URLs, in base64; nothing is ever fetched from the web."""

    max_mebibytes: Positive = Field(default=20.0, description="MiB that one image file may have.")
    max_pixels: Annotated[Count, Field(le=MOST_PIXELS)] = Field(
        default=50_000_000,
        description="Pixels that one image may have. It takes up to 8 bytes for each while it is read.",
    )
    max_images: Count = Field(default=32, description="Images in one chat, those of its earlier turns included.")
    cache_mebibytes: Count = Field(
        default=512,
        description="MiB of system memory for images that are already prepared, so that each is prepared once in a "
        "conversation.",
    )
    allowed_folders: tuple[ConfigPath, ...] = Field(
        default=(),
        description="Folders on this machine whose files clients may name in `file://` URLs, with all that is in "
        "them, relative to the config file. Every client may then have the model read every image there. Without any, "
        "such URLs are refused.",
    )
