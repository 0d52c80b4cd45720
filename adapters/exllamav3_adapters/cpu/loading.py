"""From settings to the parts that the common engine runs on: model, cache, tokenizers, renderer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exllamav3 import Tokenizer
from exllamav3.constants import PAGE_SIZE

from exllamav3_adapters.answer_format.find_format import FormatOptions
from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.chat_template import find_chat_template, read_special_tokens
from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cpu.model import CpuModel, load_model, make_cache
from exllamav3_adapters.demo_model import demo_model_folder
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.engine import LoadedModel

DEMO = "demo"
DEFAULT_BATCH_SIZE = 16
"""Sequences decoded together. Beyond it a CPU only gets slower for each."""


def with_defaults(settings: EngineSettings) -> EngineSettings:
    """What the CPU engine decides where the user did not."""
    if settings.model.max_batch_size is not None:
        return settings
    model = dataclasses.replace(settings.model, max_batch_size=DEFAULT_BATCH_SIZE)
    return dataclasses.replace(settings, model=model)


def load_parts(settings: EngineSettings, report: Callable[[LoadProgress], None]) -> LoadedModel:
    """Blocks. Call `cpu.install.install` first. Raises LoadFailed, which names the fault."""
    options = settings.model
    folder = demo_model_folder() if options.model_dir == DEMO else Path(options.model_dir)
    model = load_model(folder, report)
    context_length = _context_length(options, model)
    cache_tokens = _cache_tokens(options, context_length)
    template = find_chat_template(folder, options.chat_template)
    rendering_tokenizer = _tokenizer(model, folder)

    def encode(text: str) -> list[int]:
        token_ids: list[int] = rendering_tokenizer.encode(text, encode_special_tokens=True)[0].tolist()
        return token_ids

    return LoadedModel(
        model=model,
        cache=_cache(model, cache_tokens, options),
        tokenizer=_tokenizer(model, folder),
        renderer=ChatRenderer(template, read_special_tokens(folder), encode, format_options=FormatOptions.of(options)),
        context_length=context_length,
    )


def _context_length(options: ModelOptions, model: CpuModel) -> int:
    made_for = model.context_length
    if options.max_seq_len is None:
        if made_for is None:
            raise LoadFailed("model.max_seq_len: the model's config.json names no context length, so it must be set")
        return made_for
    if made_for is not None and options.max_seq_len > made_for:
        raise LoadFailed(
            f"model.max_seq_len: {options.max_seq_len} is more than the {made_for} tokens that the model was made for"
        )
    return options.max_seq_len


def _cache_tokens(options: ModelOptions, context_length: int) -> int:
    tokens = options.cache_size or -(-context_length // PAGE_SIZE) * PAGE_SIZE
    if tokens < context_length:
        raise LoadFailed(
            f"model.cache_size: {tokens} tokens cannot hold one context of {context_length}; raise it, or set "
            f"model.max_seq_len to {tokens} at most"
        )
    return tokens


def _cache(model: CpuModel, tokens: int, options: ModelOptions) -> Any:
    try:
        return make_cache(model, tokens, max_batch_size=options.max_batch_size or DEFAULT_BATCH_SIZE)
    except (MemoryError, RuntimeError) as error:
        raise LoadFailed(f"model.cache_size: no memory for a cache of {tokens} tokens; lower it") from error


def _tokenizer(model: CpuModel, folder: Path) -> Any:
    try:
        return Tokenizer(model.config)
    except Exception as error:  # the tokenizers library raises plain exceptions for files that it cannot read
        raise LoadFailed(f"model_dir: the tokenizer files in {folder} cannot be used: {error}") from error
