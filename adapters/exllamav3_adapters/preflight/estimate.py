"""What a model will take on each device, against what is free there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.byte_size import MEBIBYTE, shown_bytes
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.machine import Gpu, Machine
from exllamav3_adapters.preflight.model_costs import ModelCosts
from exllamav3_adapters.preflight.placement import LOADER_MARGIN, Placement, Share, place
from exllamav3_adapters.preflight.remedy import nothing_fits, remedies


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEstimate:
    """One GPU, the system memory or the disk. Bytes."""

    kind: Literal["gpu", "memory", "disk"]
    device: str
    free: int
    usable: int
    """Of `free`: what the settings leave to the model."""
    uses: Mapping[str, int]
    """By purpose, in the order of the table."""

    @property
    def needed(self) -> int:
        return sum(self.uses.values())

    @property
    def missing(self) -> int:
        return max(0, self.needed - self.usable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """By device. An estimate: the loader measures what this works out."""

    devices: tuple[DeviceEstimate, ...]
    page_bytes: int
    """One page of the cache over all layers, a draft model's included."""
    checkpoint_bytes: int
    """One recurrent checkpoint; 0 for a model without recurrent layers."""

    @property
    def fits(self) -> bool:
        return not any(device.missing for device in self.devices)


def estimate(settings: EngineSettings, costs: ModelCosts, machine: Machine) -> Estimate:
    """Without a GPU: what would be needed, as if there were one with nothing on it."""
    gpus = [_on_gpu(index, share, machine) for index, share in enumerate(_placed(settings, costs, machine).gpus)]
    return Estimate(
        devices=(*gpus, _in_memory(settings, costs, machine), *_on_disk(settings, machine)),
        page_bytes=costs.page_bytes(costs.sizes),
        checkpoint_bytes=costs.checkpoint,
    )


def memory_findings(settings: EngineSettings, costs: ModelCosts, machine: Machine) -> Iterator[Finding]:
    """Of the GPUs' memory. Nothing where there is no GPU: that is a finding of its own.

    An error where what stays allocated does not fit, which is certain; a warning where only the estimate of what
    forwards need beside it does not.
    """
    if not machine.gpus:
        return
    placement = place(settings, costs, costs.sizes, machine.gpus)
    if placement.fits:
        return
    ways = remedies(settings, costs, machine.gpus)
    certain = not place(settings, costs, costs.sizes, machine.gpus, forwards=False).fits
    yield Finding(
        severity="error" if certain else "warning",
        subject="GPU memory",
        fault=_shortfall(placement, machine) + ("" if certain else ", as far as forwards can be estimated"),
        remedy="; or ".join(ways) if ways else nothing_fits(settings, costs, machine.gpus),
    )


def table(found: Estimate) -> str:
    """For people: a line a purpose, a block a device."""
    lines: list[str] = []
    for device in found.devices:
        lines.append(f"{device.device}: needs {shown_bytes(device.needed)}, {_verdict(device)}")
        lines += [f"    {purpose:<24}{shown_bytes(size):>12}" for purpose, size in device.uses.items()]
    return "\n".join(lines)


def _verdict(device: DeviceEstimate) -> str:
    if not device.usable:
        return "there is none here"
    against = f"{shown_bytes(device.usable)} usable"
    return f"{shown_bytes(device.missing)} more than the {against}" if device.missing else f"fits ({against})"


def _placed(settings: EngineSettings, costs: ModelCosts, machine: Machine) -> Placement:
    nowhere = (Gpu(name="no GPU", compute_capability=(0, 0), total=0, free=0),)
    return place(settings, costs, costs.sizes, machine.gpus or nowhere)


def _on_gpu(index: int, share: Share, machine: Machine) -> DeviceEstimate:
    uses = _ordered(share.uses)
    if share.uses:
        uses |= {"largest forward": share.transient, "loader's margin": LOADER_MARGIN}
    if not machine.gpus:
        return DeviceEstimate(kind="gpu", device="GPU", free=0, usable=0, uses=uses)
    gpu = machine.gpus[index]
    return DeviceEstimate(
        kind="gpu", device=f"cuda:{index} ({gpu.name})", free=gpu.free, usable=share.budget, uses=uses
    )


def _in_memory(settings: EngineSettings, costs: ModelCosts, machine: Machine) -> DeviceEstimate:
    host = _placed(settings, costs, machine).host
    host["tier of pages"] = settings.memory.sysmem_kv_cache * MEBIBYTE
    if any(component.is_recurrent for component in costs.components):
        host["tier of checkpoints"] = settings.memory.sysmem_recurrent_cache * MEBIBYTE
    return DeviceEstimate(
        kind="memory", device="system memory", free=machine.memory_free, usable=machine.memory_free, uses=_ordered(host)
    )


def _on_disk(settings: EngineSettings, machine: Machine) -> Sequence[DeviceEstimate]:
    if machine.disk is None:
        return ()
    room = machine.disk.free + machine.disk.used_by_tier
    uses = {"tier of pages and checkpoints": settings.memory.disk_cache_size * MEBIBYTE}
    return (DeviceEstimate(kind="disk", device="disk", free=machine.disk.free, usable=room, uses=uses),)


def _ordered(uses: Counter[str]) -> dict[str, int]:
    """The largest first, without what takes nothing."""
    return {purpose: size for purpose, size in uses.most_common() if size}


def _shortfall(placement: Placement, machine: Machine) -> str:
    parts = []
    for index, (share, gpu) in enumerate(zip(placement.gpus, machine.gpus, strict=True)):
        if share.needed > share.budget:
            parts.append(
                f"cuda:{index} ({gpu.name}) would need {shown_bytes(share.needed)} and may use "
                f"{shown_bytes(share.budget)} of {shown_bytes(gpu.free)} free"
            )
    return f"{shown_bytes(placement.missing)} are missing ({'; '.join(parts)})"
