"""Which device a model's modules land on, and what each device then holds: exllamav3's own order, in arithmetic.

By layer (`Model_LSMixin._load_autosplit`): modules go to the first GPU that has room for them and for the largest
forward seen on it, and never back to an earlier one. Tensor parallel (`TPAllocator`): each GPU takes a share of every
module in proportion to its memory; here by bytes and not by whole heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.byte_size import GIBIBYTE, MEBIBYTE
from exllamav3_adapters.preflight.machine import Gpu
from exllamav3_adapters.preflight.model_costs import (
    PAGE_TOKENS,
    ComponentCost,
    ComponentName,
    ModelCosts,
    ModuleCost,
    Sizes,
    mode_of,
)

LOADER_MARGIN: Final = 256 * MEBIBYTE
"""What the loader keeps free beside the largest forward (`EXL3_AUTOSPLIT_MARGIN_MB`)."""
_DEFAULT_RESERVE: Final = GIBIBYTE // 2
"""The loader's, of a GPU that `autosplit_reserve` does not name."""
_OWN_NAMES: Final[dict[ComponentName, str]] = {"model": "", "draft": "draft ", "vision": "vision "}


@dataclass(slots=True)
class Share:
    """What one GPU is to hold. Bytes."""

    budget: int = 0
    """What the settings let the loader use there, all components together."""
    uses: Counter[str] = field(default_factory=Counter)
    """By purpose."""
    transient: int = 0
    """Largest forward of a module on it."""
    margin: int = LOADER_MARGIN

    @property
    def needed(self) -> int:
        return self.uses.total() + (self.transient + self.margin if self.uses else 0)

    def begin(self, budget: int, free: int, *, counts_from_now: bool) -> None:
        """A component's load: `gpu_split` is what it may use beside what is there by then, within the card."""
        self.budget = min(free, budget + self.uses.total()) if counts_from_now else max(self.budget, budget)

    def missing_with(self, uses: Counter[str], transient: int) -> int:
        """Bytes by which it is too small for those as well."""
        return self.uses.total() + uses.total() + max(self.transient, transient) + self.margin - self.budget

    def take(self, uses: Counter[str], transient: int) -> None:
        self.uses.update(uses)
        self.transient = max(self.transient, transient)


@dataclass(frozen=True, slots=True)
class Placement:
    """All components on their devices. `host`: what the loader puts into system memory, by purpose."""

    gpus: tuple[Share, ...]
    host: Counter[str]

    @property
    def missing(self) -> int:
        """Bytes by which the GPUs are too small, all together."""
        return sum(max(0, share.needed - share.budget) for share in self.gpus)

    @property
    def fits(self) -> bool:
        return not self.missing


def place(
    settings: EngineSettings, costs: ModelCosts, sizes: Sizes, gpus: Sequence[Gpu], *, forwards: bool = True
) -> Placement:
    """With other sizes than the settings', to see whether those would fit. There must be a GPU.

    Without `forwards`, only what stays allocated counts, whose sizes are exact; what forwards need is estimated.
    """
    assert gpus
    shares = tuple(Share(margin=LOADER_MARGIN if forwards else 0) for _ in gpus)
    host: Counter[str] = Counter()
    for component in costs.components:
        split = _split_of(component.name, settings, len(gpus))
        budgets = _of_split(split, gpus) if split else _automatic(settings, gpus)
        for share, budget, gpu in zip(shares, budgets, gpus, strict=True):
            share.begin(budget, gpu.free, counts_from_now=bool(split))
        usable = [share for share, budget in zip(shares, budgets, strict=True) if budget > 0] or [shares[0]]
        modules = [(uses, transient * forwards) for uses, transient in _on_gpus(component, costs, sizes, host)]
        if component.name == "model" and settings.model.tensor_parallel and len(gpus) > 1:
            _split_every_module(modules, usable)
        else:
            _fill_in_order(modules, usable)
        _add_adapters(component, shares)
    return Placement(shares, host)


def _split_of(name: ComponentName, settings: EngineSettings, num_gpus: int) -> tuple[float, ...]:
    """GiB by GPU, where the user says so (`cuda/split_options.py`). Empty: automatic."""
    if num_gpus == 1 or name == "vision":
        return ()
    return settings.draft.draft_gpu_split if name == "draft" else settings.model.gpu_split


def _automatic(settings: EngineSettings, gpus: Sequence[Gpu]) -> list[int]:
    """Bytes on each GPU; 0 where a component may not be."""
    options = settings.model
    reserves = [int(mebibytes * MEBIBYTE) for mebibytes in options.autosplit_reserve]
    reserves += [_DEFAULT_RESERVE] * (len(gpus) - len(reserves))
    split = options.gpu_split if len(gpus) > 1 else ()
    only_first = not split and not options.gpu_split_auto and not options.tensor_parallel
    unused = [
        (only_first and index > 0) or bool(split and (index >= len(split) or not split[index]))
        for index in range(len(gpus))
    ]
    return [
        0 if left_out else max(0, gpu.free - reserve)
        for gpu, reserve, left_out in zip(gpus, reserves, unused, strict=False)
    ]


def _of_split(gibibytes: Sequence[float], gpus: Sequence[Gpu]) -> list[int]:
    asked = [int(size * GIBIBYTE) for size in gibibytes[: len(gpus)]]
    asked += [0] * (len(gpus) - len(asked))
    return [min(size, gpu.free) for size, gpu in zip(asked, gpus, strict=True)]


def _on_gpus(
    component: ComponentCost, costs: ModelCosts, sizes: Sizes, host: Counter[str]
) -> list[tuple[Counter[str], int]]:
    """(what a module takes, its largest forward) of those that go to a GPU; the rest is added to `host`."""
    found = []
    offloaded = 0
    for module in component.modules:
        if module.on_host:
            host[f"{_OWN_NAMES[component.name]}embeddings"] += module.weights
            continue
        on_cpu = 0
        if component.name == "model" and module.experts:
            on_cpu = _experts_on_cpu(module, costs, sizes, offloaded)
            offloaded += 1
        if on_cpu:
            host["experts"] += on_cpu
        found.append((_uses(component, module, sizes, on_cpu), module.transient))
    return found


def _experts_on_cpu(module: ModuleCost, costs: ModelCosts, sizes: Sizes, offloaded: int) -> int:
    if sizes.moe_cpu_offload:
        return module.experts if offloaded < sizes.moe_cpu_offload else 0
    split = min(sizes.moe_cpu_split, costs.experts_per_layer - 1)  # one expert stays on the GPU
    return module.experts * split // costs.experts_per_layer if split > 0 else 0


def _uses(component: ComponentCost, module: ModuleCost, sizes: Sizes, on_cpu: int) -> Counter[str]:
    own = _OWN_NAMES[component.name]
    pages = -(-sizes.cache_tokens // PAGE_TOKENS)
    uses = {
        f"{own}weights": module.weights - on_cpu,
        f"{own}cache": module.page.get(mode_of(component, sizes), 0) * pages,
        f"{own}recurrent slots": module.slot * sizes.slots,
        f"{own}rollback history": module.history * sizes.slots,
    }
    return Counter({purpose: size for purpose, size in uses.items() if size})


def _fill_in_order(modules: Sequence[tuple[Counter[str], int]], shares: Sequence[Share]) -> None:
    """What fits nowhere is added to the last GPU, which then needs more than it has."""
    current = 0
    for uses, transient in modules:
        while current < len(shares) - 1 and shares[current].missing_with(uses, transient) > 0:
            current += 1
        shares[current].take(uses, transient)


def _split_every_module(modules: Sequence[tuple[Counter[str], int]], shares: Sequence[Share]) -> None:
    """In proportion to what is left on each GPU. Forwards take their whole size on each: an upper bound."""
    left = [max(1, share.budget - share.needed) for share in shares]
    total = sum(left)
    for uses, transient in modules:
        for share, room in zip(shares, left, strict=True):
            part = Counter({purpose: -(-size * room // total) for purpose, size in uses.items()})
            share.take(part, transient)


def _add_adapters(component: ComponentCost, shares: Sequence[Share]) -> None:
    """LoRA tensors lie beside the layers that they add to: by the weights of each GPU."""
    purpose = f"{_OWN_NAMES[component.name]}weights"
    weights = sum(share.uses[purpose] for share in shares)
    for share in shares:
        if component.adapters and weights:
            share.uses["adapters"] += component.adapters * share.uses[purpose] // weights
