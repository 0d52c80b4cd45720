"""Models and cards of round sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from preflight_run import MIB

from exllamav3_adapters.preflight.machine import Gpu
from exllamav3_adapters.preflight.model_costs import ComponentCost, ComponentName, ModelCosts, ModuleCost, Sizes


def module(key: str, weights: int = 100, page: Mapping[str, int] | None = None, **costs: Any) -> ModuleCost:
    """Weights in MiB."""
    return ModuleCost(key=key, weights=weights * MIB, page=page or {}, **costs)


def component(*modules: ModuleCost, name: ComponentName = "model", **costs: Any) -> ComponentCost:
    return ComponentCost(name=name, modules=modules, **costs)


def costs_of(*components: ComponentCost, **changes: Any) -> ModelCosts:
    sizes = Sizes(cache_tokens=1024, cache_mode="FP16", slots=4)
    costs = ModelCosts(architecture="ForTest", context=512, sizes=sizes, components=components)
    return dataclasses.replace(costs, **changes)


def layers(count: int = 4, **costs: Any) -> ComponentCost:
    return component(*(module(f"layer{index}", **costs) for index in range(count)))


def gpus(*free: int) -> list[Gpu]:
    """By free MiB."""
    return [Gpu(name="T", compute_capability=(9, 0), total=size * MIB, free=size * MIB) for size in free]
