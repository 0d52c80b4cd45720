"""How a generator's cache of recurrent checkpoints becomes a `CheckpointCache`, and whether it fits."""

from __future__ import annotations

from typing import Any

from exllamav3 import Generator, Job
from exllamav3.cache.recurrent import RecurrentCache
from exllamav3.generator.cpu_cache import CPUPageCache
from exllamav3.generator.pagetable import PageTable

from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.checkpoint_cache import CheckpointCache
from exllamav3_adapters.exl3.checkpoint_eviction import CheckpointEviction
from exllamav3_adapters.exl3.engine_signatures import Signatures, changed_functions, misfit


def install_checkpoints(
    generator: Any, *, keeps_frontiers: bool, eviction: CheckpointEviction | None = None
) -> CheckpointCache:
    """Gives the generator's cache of checkpoints frontiers and another order of eviction, where they are wanted, and
    counters, in place.

    Raises LoadFailed where one of the two is wanted and the installed exllamav3, or drafts, do not allow it.
    """
    cache: CheckpointCache = generator.recurrent_cache
    if keeps_frontiers:
        _check(cache, _FRONTIERS_EXPECT, "recurrent_frontier_checkpoints")
        _refuse_drafts(generator)
    if eviction is not None:
        _check(cache, _EVICTION_EXPECTS, "recurrent_eviction")
        _check_choice()
    cache.__class__ = CheckpointCache
    cache.adopt(
        generator.cpu_page_cache,
        keeps_frontiers=keeps_frontiers,
        eviction=eviction,
        is_tensor_parallel=bool(getattr(generator.model, "loaded_tp", False)),
    )
    if cache.reaches_into_pages:
        _claim_for_targets(generator.pagetable, cache)
    return cache


def _claim_for_targets(pagetable: Any, cache: CheckpointCache) -> None:
    """Bound to the one table and not to its class, which another policy may change too."""

    def allocate_pages(
        page_hashes: list[bytes],
        new_unique_pages: int,
        recurrent_pages: list[int] | None,
        protected_hashes: set[bytes] | None = None,
        restore_limit: int | None = None,
    ) -> Any:
        restore_limit, protected_hashes = cache.claim(restore_limit, protected_hashes, page_hashes)
        return type(pagetable).allocate_pages(
            pagetable, page_hashes, new_unique_pages, recurrent_pages, protected_hashes, restore_limit
        )

    pagetable.allocate_pages = allocate_pages


_FRONTIERS_EXPECT: Signatures = {
    RecurrentCache._insert: ["self", "key", "stashed", "persist", "state"],
    RecurrentCache._release: ["self", "stashed"],
    RecurrentCache.get_stashed: ["self", "key", "default"],
    RecurrentCache.has: ["self", "key"],
    RecurrentCache.prune_stranded: ["self"],
    PageTable.allocate_pages: [
        "self",
        "page_hashes",
        "new_unique_pages",
        "recurrent_pages",
        "protected_hashes",
        "restore_limit",
    ],
    PageTable.is_resumable: ["self", "phash"],
    CPUPageCache.store: ["self", "page", "serial", "protect"],
    CPUPageCache.fetch: ["self", "phash", "page_index", "serial"],
    CPUPageCache.promote: ["self", "phash", "serial", "protect"],
    CPUPageCache._busy: ["self", "phash", "e"],
    Generator.recurrent_state_from_stashed: ["self", "stashed", "position"],
    Generator.recurrent_checkpoint: ["self"],
    Job.prefill: ["self", "results", "chunk_size"],
    Job.allocate_pages: ["self"],
    Job.deallocate_pages: ["self"],
    Job.maybe_stash_recurrent: ["self", "cache", "interval"],
}


_EVICTION_EXPECTS: Signatures = {
    RecurrentCache._insert: ["self", "key", "stashed", "persist", "state"],
    RecurrentCache.get_stashed: ["self", "key", "default"],
    RecurrentCache.put: ["self", "key", "state"],
    RecurrentCache.rekey: ["self", "old_key", "new_key"],
    RecurrentCache.prune_stranded: ["self"],
    PageTable.is_resumable: ["self", "phash"],
    PageTable.get_live_page: ["self", "phash"],
    Job.prefill: ["self", "results", "chunk_size"],
}


def _check(cache: Any, expected: Signatures, option: str) -> None:
    changed = changed_functions(expected)
    if changed or type(cache) is not RecurrentCache:
        raise misfit(f"model.{option}", ", ".join(changed) or type(cache).__name__)


def _check_choice() -> None:
    """`_insert` drops what cannot be reached, and then takes the first item: there another order is put in."""
    called = RecurrentCache._insert.__code__.co_names
    missing = [name for name in ("is_resumable", "popitem") if name not in called]
    if missing:
        raise misfit("model.recurrent_eviction", f"RecurrentCache._insert without {', '.join(missing)}")


def _refuse_drafts(generator: Any) -> None:
    """While drafted tokens are being accepted, the state is ahead of them."""
    if generator.draft_model is not None or generator.max_draft_tokens:
        raise LoadFailed(
            "model.recurrent_frontier_checkpoints does not work together with drafts; set draft_model.draft_mode to "
            "disabled and draft_model.hybrid_draft_tokens to 0, or remove it"
        )
