"""Whether the tiers behind the cache can be as they are set, before exllamav3 finds out with an assertion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exllamav3.constants import PAGE_SIZE

from exllamav3_adapters.engine_settings import MemoryOptions
from exllamav3_adapters.errors import LoadFailed

MEBIBYTE = 1024 * 1024
LEAST_PAGES = 2
"""exllamav3's system-memory tier refuses to be smaller."""


def check_tiers(memory: MemoryOptions, cache: Any) -> None:
    """Raises LoadFailed, which names the setting and what it must be."""
    if memory.sysmem_kv_cache:
        needed = -(-LEAST_PAGES * page_bytes(cache) // MEBIBYTE)
        if memory.sysmem_kv_cache < needed:
            raise LoadFailed(
                f"memory.sysmem_kv_cache: {memory.sysmem_kv_cache} MiB hold less than {LEAST_PAGES} pages of this "
                f"model ({page_bytes(cache) / MEBIBYTE:.1f} MiB each); set it to {needed} at least, or to 0"
            )
    if memory.disk_cache_dir is not None:
        try:
            Path(memory.disk_cache_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LoadFailed(
                f"memory.disk_cache_dir: {memory.disk_cache_dir} cannot be a folder ({error.strerror})"
            ) from error


def page_bytes(cache: Any) -> int:
    """Of one page, over all layers; of a tensor parallel model, whose tensors are in other processes, over all GPUs."""
    num_pages = int(cache.max_num_tokens) // int(PAGE_SIZE)
    return sum(int(layer.storage_size()) for layer in cache.layers.values()) // num_pages
