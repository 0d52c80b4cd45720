"""What must be equal for token ids and pages of an earlier load to fit this one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.disk_cache import model_identity

if TYPE_CHECKING:
    from exllamav3_adapters.exl3.engine import LoadedModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json")


def cache_fingerprint(loaded: LoadedModel) -> str:
    """Hex digest of weights (by sample, as exllamav3's disk tier does it), tokenizer and cache layout.

    The chat template is not part of it: it changes which tokens a chat becomes, not what a token means.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(model_identity(loaded.model.config).encode())
    folder = Path(loaded.model.config.directory)
    for name in TOKENIZER_FILES:
        if (file := folder / name).is_file():
            digest.update(name.encode() + file.read_bytes())
    layers = sorted(
        f"{key} {type(layer).__name__} {getattr(layer, 'k_bits', '')} {getattr(layer, 'v_bits', '')}"
        for key, layer in loaded.cache.layers.items()
    )
    digest.update(f"{PAGE_SIZE} {layers}".encode())
    return digest.hexdigest()
