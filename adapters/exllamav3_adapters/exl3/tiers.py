"""Whether the tiers behind the cache can be as they are set, before exllamav3 finds out with an assertion."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Any

from exllamav3.constants import PAGE_SIZE

from exllamav3_adapters.engine_settings import MemoryOptions
from exllamav3_adapters.errors import LoadFailed

log = logging.getLogger(__name__)

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
        _make_private(Path(memory.disk_cache_dir))


def _make_private(folder: Path) -> None:
    """The tier holds the tokens of whole conversations. A folder that is there may be others' on purpose."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise LoadFailed(f"memory.disk_cache_dir: {folder} cannot be a folder ({error.strerror})") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning(
            "memory.disk_cache_dir: %s may be entered by other users, and will hold the tokens of whole conversations; "
            "chmod 700 it",
            folder,
        )


def page_bytes(cache: Any) -> int:
    """Of one page, over all layers; of a tensor parallel model, whose tensors are in other processes, over all GPUs."""
    num_pages = int(cache.max_num_tokens) // int(PAGE_SIZE)
    return sum(int(layer.storage_size()) for layer in cache.layers.values()) // num_pages
