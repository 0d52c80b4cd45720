"""What turns chats into tokens and tokens into text, from the files of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exllamav3 import Tokenizer

from exllamav3_adapters.answer_format.find_format import FormatOptions
from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.chat_template import find_chat_template, read_special_tokens
from exllamav3_adapters.engine_settings import ModelOptions
from exllamav3_adapters.errors import LoadFailed


def make_tokenizer(config: Any, folder: Path) -> Any:
    """exllamav3's, of the model that `config` describes; it adds to the config's `eos_token_id_list`. Raises
    LoadFailed."""
    try:
        return Tokenizer(config)
    except Exception as error:  # the tokenizers library raises plain exceptions for files that it cannot read
        raise LoadFailed(f"model_dir: the tokenizer files in {folder} cannot be used: {error}") from error


def make_renderer(config: Any, folder: Path, options: ModelOptions) -> ChatRenderer:
    """With a tokenizer of its own, since exllamav3's keeps state between calls. Raises LoadFailed."""
    template = find_chat_template(folder, options.chat_template)
    tokenizer = make_tokenizer(config, folder)

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, encode_special_tokens=True)[0].tolist()
        return token_ids

    return ChatRenderer(template, read_special_tokens(folder), encode, format_options=FormatOptions.of(options))
