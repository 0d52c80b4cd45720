"""Which setting to change, and to what."""

from __future__ import annotations

import dataclasses
import re

from placement_models import component, costs_of, gpus, module
from preflight_run import MIB, settings

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.model_costs import ModelCosts, Sizes
from exllamav3_adapters.preflight.placement import LOADER_MARGIN, place
from exllamav3_adapters.preflight.remedy import remedies

MARGIN = LOADER_MARGIN // MIB
GIVEN: EngineSettings = settings("/models/m", autosplit_reserve=(0.0,))


def said(costs: ModelCosts, free: int, **sizes: int) -> list[str]:
    """Remedies on a card with so many MiB free beside the loader's margin."""
    costs = dataclasses.replace(costs, sizes=dataclasses.replace(costs.sizes, **sizes))
    assert not place(GIVEN, costs, costs.sizes, gpus(MARGIN + free)).fits
    return remedies(GIVEN, costs, gpus(MARGIN + free))


def test_the_largest_cache_that_fits() -> None:
    costs = costs_of(component(module("a", page={"FP16": 10 * MIB})))
    assert said(costs, 135) == ["lower model.cache_size from 1024 to 768 tokens"]


def test_the_most_bits_that_fit() -> None:
    costs = costs_of(component(module("a", page={"FP16": 10 * MIB, "8,8": 6 * MIB, "6,6": 4 * MIB, "4,4": 3 * MIB})))
    assert said(dataclasses.replace(costs, context=1024), 118) == ['set model.cache_mode to "6,6"']


def test_no_mode_with_more_bits_than_the_one_that_is_set() -> None:
    costs = costs_of(component(module("a", page={"FP16": 10 * MIB, "8,8": 6 * MIB, "4,4": 3 * MIB})), context=1024)
    sizes = Sizes(cache_tokens=1024, cache_mode="8,8", slots=4)
    assert said(dataclasses.replace(costs, sizes=sizes), 115) == ['set model.cache_mode to "4,4"']


def test_fewer_sequences_where_each_keeps_a_recurrent_state() -> None:
    (way,) = said(costs_of(component(module("a", slot=20 * MIB, history=5 * MIB))), 160)
    assert way.startswith("lower model.max_batch_size from 4 to 2 ")


def test_fewer_sequences_are_no_remedy_for_a_dense_model() -> None:
    costs = costs_of(component(module("a", page={"FP16": 10 * MIB})))
    assert not any("max_batch_size" in way for way in said(costs, 135))


def test_the_fewest_layers_whose_experts_leave_the_gpu() -> None:
    experts = component(*(module(str(index), experts=60 * MIB) for index in range(4)))
    costs = costs_of(experts, experts_per_layer=8, expert_layers=4, offloadable_layers=4)
    (way,) = said(costs, 300)
    assert way.startswith("set model.moe_cpu_offload to 2 ")


def test_experts_that_must_stay_are_no_remedy() -> None:
    costs = costs_of(component(module("a", 400)), experts_per_layer=8, expert_layers=1)
    assert said(costs, 300) == []


def test_everything_at_its_least_where_no_single_change_does() -> None:
    costs = costs_of(component(module("a", page={"FP16": 10 * MIB, "4,4": 3 * MIB}, slot=10 * MIB)), context=4096)
    (way,) = said(costs, 140, cache_tokens=4096)
    tokens = re.findall(r"model\.cache_size to (\d+)", way)
    assert tokens == ["2560"]
    assert 'model.cache_mode to "4,4"' in way
    assert "model.max_batch_size to 1" in way
