"""What a model takes, by module, as exllamav3's own classes say (`cuda/memory_costs.py` asks them). Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

PAGE_TOKENS: Final = 256
"""exllamav3's `PAGE_SIZE`."""

ComponentName = Literal["vision", "draft", "model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleCost:
    """One module as the loader sees it: it is on one device, or split over all. Sizes in bytes."""

    key: str
    weights: int
    on_host: bool = False
    """The loader keeps it in system memory, as it does an embedding."""
    page: Mapping[str, int]
    """Cache mode -> K/V of one page. Empty where the module keeps none."""
    slot: int = 0
    """Recurrent state of one sequence: each of `max_batch_size`."""
    history: int = 0
    """What `max_history` adds to a slot."""
    experts: int = 0
    """Of `weights`: routed experts that may run on the CPU."""
    transient: int = 0
    """Most that its forward of one chunk needs beside all this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentCost:
    """A model of its own: its modules in the order of loading."""

    name: ComponentName
    modules: tuple[ModuleCost, ...]
    checkpoint: int = 0
    """Bytes of one recurrent state in system memory."""
    adapters: int = 0
    """Bytes of LoRA adapters."""

    @property
    def is_recurrent(self) -> bool:
        return any(module.slot for module in self.modules)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What the user can change to make a model fit."""

    cache_tokens: int
    cache_mode: str
    draft_cache_mode: str = "FP16"
    slots: int
    """Sequences that recurrent states are kept for."""
    moe_cpu_offload: int = 0
    moe_cpu_split: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCosts:
    """All components, in the order of loading: the model itself last."""

    architecture: str
    context: int
    """Tokens of one prompt and answer: no cache may be smaller."""
    sizes: Sizes
    """As the settings lead to them."""
    components: tuple[ComponentCost, ...]
    experts_per_layer: int = 0
    """0: a dense model."""
    offloadable_layers: int = 0
    """Mixture-of-experts layers whose experts are stored as the CPU takes them."""
    expert_layers: int = 0
    supports_tensor_parallel: bool = True
    recurrent_interval: int | None = None
    """Tokens between checkpoints, by the model's own default."""

    @property
    def main(self) -> ComponentCost:
        return self.components[-1]

    def page_bytes(self, sizes: Sizes) -> int:
        """Of one page over all layers, a draft model's included: what the tiers behind the cache store."""
        return sum(
            module.page.get(mode_of(component, sizes), 0)
            for component in self.components
            for module in component.modules
        )

    @property
    def checkpoint(self) -> int:
        return sum(component.checkpoint for component in self.components)


def mode_of(component: ComponentCost, sizes: Sizes) -> str:
    return sizes.draft_cache_mode if component.name == "draft" else sizes.cache_mode
