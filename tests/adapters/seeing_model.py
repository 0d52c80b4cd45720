"""The tiny model with eyes: the CPU engine's, and in the place of a vision component one that paints random rows."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

from exllamav3_adapters.cpu.install import install

install()

import torch
from exllamav3.tokenizer import MMEmbedding
from tiny_model import write_tiny_hybrid, write_tiny_model

from exllamav3_adapters.cpu.loading import load_parts, with_defaults
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.exl3.engine import Exl3Engine

BEGIN, END = 1, 0
"""Tokens that stand around an image."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


class Painter:
    """As exllamav3's vision components. A picture is as many rows as it is wide, which depend on its first pixel."""

    def __init__(self, hidden_size: int = 64) -> None:
        self.hidden_size = hidden_size
        self.threads: list[str] = []
        """On which it was called."""
        self.fault: Exception | None = None
        self.align = 0

    def get_image_embeddings(self, tokenizer: Any, image: Any, text_alias: str | None = None) -> MMEmbedding:
        self.threads.append(threading.current_thread().name)
        if self.fault is not None:
            raise self.fault
        source = torch.Generator().manual_seed(hash(image.getpixel((0, 0))) % 2**31)
        rows = torch.randn((image.width, self.hidden_size), generator=source) * 0.3
        lead = self.align - 1 if self.align else 0
        string = torch.tensor([[*[BEGIN] * (lead + 1), *[-1] * image.width, END]])
        return MMEmbedding(
            embeddings=rows,
            token_string=string,
            text_alias=text_alias,
            align=self.align,
            align_lead=lead,
        )


def write_seeing_folder(folder: Path, *, hybrid: bool = False) -> Path:
    write = write_tiny_hybrid if hybrid else write_tiny_model
    write(folder, max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


async def load_seeing(settings: EngineSettings, painter: Painter) -> Exl3Engine:
    def load() -> Exl3Engine:
        complete = with_defaults(settings)
        loaded = dataclasses.replace(load_parts(complete, lambda progress: None), vision=painter)
        return Exl3Engine("cpu", complete, loaded)

    return await asyncio.to_thread(load)
