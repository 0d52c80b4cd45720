"""Whether system memory and disk can hold the tiers behind the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.byte_size import GIBIBYTE, MEBIBYTE, shown_bytes
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.machine import Disk, Machine
from exllamav3_adapters.preflight.model_costs import ModelCosts

HOST_RESERVE: Final = 2 * GIBIBYTE
"""exllamav3 locks no memory that would leave less than this free (`EXL3_HOST_MEM_RESERVE_MB`)."""
_LEAST_PAGES: Final = 2
"""Of the system-memory tier, which refuses to be smaller."""
_LEAST_DISK: Final = 256 * MEBIBYTE
"""With less than this free a disk counts as full."""


def tier_findings(settings: EngineSettings, machine: Machine) -> Iterator[Finding]:
    """What can be said without knowing the model."""
    yield from _locked_findings(settings, machine)
    if machine.disk is not None:
        yield from _disk_findings(settings, machine.disk)


def tier_size_findings(settings: EngineSettings, costs: ModelCosts, machine: Machine) -> Iterator[Finding]:
    """Against what one page and one checkpoint of the model take."""
    memory = settings.memory
    page = costs.page_bytes(costs.sizes)
    least = -(-_LEAST_PAGES * page // MEBIBYTE)
    if 0 < memory.sysmem_kv_cache < least:
        yield Finding(
            subject="memory.sysmem_kv_cache",
            fault=f"{memory.sysmem_kv_cache} MiB hold less than {_LEAST_PAGES} pages of this model "
            f"({shown_bytes(page)} each)",
            remedy=f"set it to {least} at least, or to 0",
        )
    checkpoint = costs.checkpoint
    if checkpoint and memory.sysmem_recurrent_cache * MEBIBYTE < checkpoint:
        yield Finding(
            severity="warning",
            subject="memory.sysmem_recurrent_cache",
            fault=f"{memory.sysmem_recurrent_cache} MiB hold no recurrent checkpoint of this model "
            f"({shown_bytes(checkpoint)}), so every prompt is computed from its beginning",
            remedy=f"set it to {-(-8 * checkpoint // MEBIBYTE)} for eight of them",
        )
    recurrent = memory.sysmem_recurrent_cache * MEBIBYTE if checkpoint else 0
    both = memory.sysmem_kv_cache * MEBIBYTE + recurrent
    if memory.sysmem_kv_cache * MEBIBYTE + HOST_RESERVE <= machine.memory_free < both and recurrent:
        yield Finding(
            severity="warning",
            subject="memory.sysmem_recurrent_cache",
            fault=f"with memory.sysmem_kv_cache it may grow to {shown_bytes(both)}, and "
            f"{shown_bytes(machine.memory_free)} of system memory are free",
            remedy=f"lower it to {max(0, (machine.memory_free - both + recurrent) // MEBIBYTE)} MiB or less",
        )


def _locked_findings(settings: EngineSettings, machine: Machine) -> Iterator[Finding]:
    """Of the tier of pages, which is committed and locked whole at the load."""
    asked = settings.memory.sysmem_kv_cache * MEBIBYTE
    if asked and asked + HOST_RESERVE > machine.memory_free:
        room = max(0, (machine.memory_free - HOST_RESERVE) // MEBIBYTE)
        yield Finding(
            subject="memory.sysmem_kv_cache",
            fault=f"{shown_bytes(asked)} are asked for, and of {shown_bytes(machine.memory_total)} of system memory "
            f"{shown_bytes(machine.memory_free)} are free, of which exllamav3 leaves {shown_bytes(HOST_RESERVE)}",
            remedy=f"lower it to {room} MiB or less",
        )
    if machine.lockable is not None and asked > machine.lockable and machine.gpus:
        yield Finding(
            severity="warning",
            subject="memory.sysmem_kv_cache",
            fault=f"{shown_bytes(asked)} are to be locked, and this process may lock {shown_bytes(machine.lockable)} "
            "(RLIMIT_MEMLOCK); memory that cannot be locked is copied slower",
            remedy="raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, docker run --ulimit "
            "memlock=-1), or lower it",
        )


def _disk_findings(settings: EngineSettings, disk: Disk) -> Iterator[Finding]:
    folder = settings.memory.disk_cache_dir
    if disk.obstacle is not None:
        yield Finding(
            subject="memory.disk_cache_dir",
            fault=f"{folder} cannot be written: {disk.obstacle}",
            remedy="name another folder, or change its owner or mode",
        )
        return
    asked = settings.memory.disk_cache_size * MEBIBYTE
    room = disk.free + disk.used_by_tier
    if disk.free < min(asked, _LEAST_DISK) and disk.used_by_tier < asked:
        yield Finding(
            subject="memory.disk_cache_dir",
            fault=f"the disk of {folder} is full: {shown_bytes(disk.free)} are free",
            remedy="free some, or name a folder on another disk",
        )
    elif asked > room:
        yield Finding(
            severity="warning",
            subject="memory.disk_cache_size",
            fault=f"{shown_bytes(asked)} are allowed, and the disk of {folder} has {shown_bytes(room)} for it",
            remedy=f"lower it to {int(room * 0.9) // MEBIBYTE} MiB, so that the disk does not fill up",
        )
