"""Where modules land, by the loader's order."""

from __future__ import annotations

import dataclasses
from typing import Any

from placement_models import component, costs_of, gpus, layers, module
from preflight_run import MIB, settings

from exllamav3_adapters.engine_settings import DraftOptions
from exllamav3_adapters.preflight.machine import Gpu
from exllamav3_adapters.preflight.model_costs import ModelCosts, Sizes
from exllamav3_adapters.preflight.placement import LOADER_MARGIN, Placement, place

NOWHERE = "/models/m"


def placed(costs: ModelCosts, cards: list[Gpu], sizes: Sizes | None = None, **options: Any) -> Placement:
    options.setdefault("autosplit_reserve", (0.0,) * len(cards))
    return place(settings(NOWHERE, **options), costs, sizes or costs.sizes, cards)


def weights(placement: Placement) -> list[int]:
    """MiB by GPU."""
    return [share.uses["weights"] // MIB for share in placement.gpus]


def test_gpus_are_filled_in_order() -> None:
    margin = LOADER_MARGIN // MIB
    assert weights(placed(costs_of(layers(4)), gpus(margin + 250, margin + 250))) == [200, 200]


def test_a_module_for_which_there_is_no_room_is_missing_on_the_last_gpu() -> None:
    margin = LOADER_MARGIN // MIB
    placement = placed(costs_of(layers(4)), gpus(margin + 150, margin + 150))
    assert weights(placement) == [100, 300]
    assert (placement.fits, placement.missing // MIB) == (False, 150)


def test_the_largest_forward_on_a_gpu_needs_its_room_there() -> None:
    margin = LOADER_MARGIN // MIB
    greedy = layers(3, transient=50 * MIB)
    assert weights(placed(costs_of(greedy), gpus(margin + 220, margin + 200))) == [100, 200]


def test_a_reserve_is_left_free() -> None:
    margin = LOADER_MARGIN // MIB
    cards = gpus(margin + 250, margin + 250)
    assert weights(placed(costs_of(layers(4)), cards, autosplit_reserve=(100.0, 0.0))) == [100, 300]


def test_gpus_beyond_the_list_of_reserves_keep_the_loaders_own() -> None:
    placement = placed(costs_of(layers(1)), gpus(1000, 1000), autosplit_reserve=(96.0,))
    assert [share.budget // MIB for share in placement.gpus] == [904, 488]


def test_gpu_split_is_what_may_be_used() -> None:
    placement = placed(costs_of(layers(8)), gpus(4096, 4096), gpu_split=(0.5, 2.0))
    assert weights(placement) == [200, 600]


def test_gpu_split_cannot_give_more_than_is_free() -> None:
    placement = placed(costs_of(layers(8)), gpus(512, 4096), gpu_split=(24.0, 24.0))
    assert weights(placement) == [200, 600]


def test_without_automatic_splitting_the_first_gpu_alone_is_used() -> None:
    placement = placed(costs_of(layers(8)), gpus(512, 4096), gpu_split_auto=False)
    assert weights(placement) == [800, 0]


def test_embeddings_stay_in_system_memory() -> None:
    placement = placed(costs_of(component(module("embed", on_host=True), module("layer"))), gpus(4096))
    assert weights(placement) == [100]
    assert placement.host == {"embeddings": 100 * MIB}


def test_caches_and_states_lie_beside_their_layers() -> None:
    attention = module("a", page={"FP16": 10 * MIB})
    linear = module("b", slot=3 * MIB, history=MIB)
    (share,) = placed(costs_of(component(attention, linear)), gpus(4096)).gpus
    assert share.uses == {
        "weights": 200 * MIB,
        "cache": 40 * MIB,
        "recurrent slots": 12 * MIB,
        "rollback history": 4 * MIB,
    }


def test_a_cache_mode_changes_the_cache_alone() -> None:
    costs = costs_of(component(module("a", page={"FP16": 10 * MIB, "4,4": 3 * MIB})))
    (share,) = placed(costs, gpus(4096), dataclasses.replace(costs.sizes, cache_mode="4,4")).gpus
    assert share.uses == {"weights": 100 * MIB, "cache": 12 * MIB}


def test_experts_of_the_first_layers_go_to_system_memory() -> None:
    costs = costs_of(layers(4, experts=80 * MIB), experts_per_layer=8, offloadable_layers=4)
    placement = placed(costs, gpus(4096), dataclasses.replace(costs.sizes, moe_cpu_offload=3))
    assert weights(placement) == [160]
    assert placement.host["experts"] == 240 * MIB


def test_some_experts_of_every_layer_go_to_system_memory_and_one_never_does() -> None:
    costs = costs_of(layers(2, experts=80 * MIB), experts_per_layer=8, offloadable_layers=2)
    assert placed(costs, gpus(4096), dataclasses.replace(costs.sizes, moe_cpu_split=4)).host["experts"] == 80 * MIB
    assert placed(costs, gpus(4096), dataclasses.replace(costs.sizes, moe_cpu_split=99)).host["experts"] == 140 * MIB


def test_a_draft_model_and_a_vision_component_take_their_room_first() -> None:
    vision = component(module("v", 50), name="vision")
    draft = component(module("d", 60, page={"FP16": MIB}), name="draft")
    placement = placed(costs_of(vision, draft, layers(4)), gpus(480, 4096))
    assert placement.gpus[0].uses == {
        "vision weights": 50 * MIB,
        "draft weights": 60 * MIB,
        "draft cache": 4 * MIB,
        "weights": 100 * MIB,
    }
    assert weights(placement) == [100, 300]


def test_a_draft_model_can_have_a_split_of_its_own() -> None:
    draft = component(module("d", 60), name="draft")
    given = settings(NOWHERE, draft=DraftOptions(draft_mode="model", draft_gpu_split=(0.0, 1.0)))
    costs = costs_of(draft, layers(2))
    first, second = place(given, costs, costs.sizes, gpus(4096, 4096)).gpus
    assert (first.uses, second.uses) == ({"weights": 200 * MIB}, {"draft weights": 60 * MIB})


def test_tensor_parallel_shares_every_module_by_free_memory() -> None:
    placement = placed(costs_of(layers(4)), gpus(1000, 3000), tensor_parallel=True)
    assert weights(placement) == [100, 300]


def test_adapters_lie_beside_the_layers_that_they_add_to() -> None:
    model = dataclasses.replace(layers(4), adapters=40 * MIB)
    margin = LOADER_MARGIN // MIB
    placement = placed(costs_of(model), gpus(margin + 100, 4096))
    assert [share.uses["adapters"] // MIB for share in placement.gpus] == [10, 30]
