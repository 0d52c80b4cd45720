"""What a model will take, asked of exllamav3's own objects before a weight is read.

Its cache layers and recurrent layers know their sizes without being allocated, so no formula is repeated here. Works
with the real extension and, for a check that must not compile one, with the CPU engine's stand-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from exllamav3 import Cache
from exllamav3.constants import PAGE_SIZE
from exllamav3.modules import BlockSparseMLP

from exllamav3_adapters.cuda.cache_options import cache_layers, state_dtype
from exllamav3_adapters.cuda.layout import Layout
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.model_costs import ComponentCost, ComponentName, ModelCosts, ModuleCost, Sizes

CACHE_MODES: Final = ("FP16", "8,8", "6,6", "5,5", "4,4")
"""Those that a remedy may name, from the largest."""
_LOGIT_ROWS: Final = 32
"""The loader's `max_output_size`: rows of logits that one forward makes."""
_COARSE_COPIES: Final = 8
"""Copies of a chunk's hidden state that a module without figures of its own is taken to need at once."""
_HALF: Final = 2


def memory_costs(settings: EngineSettings, layout: Layout, adapters: int = 0) -> ModelCosts:
    """`adapters`: bytes of LoRA tensors. Allocates nothing, and leaves the models as they were."""
    options = settings.model
    sizes = Sizes(
        cache_tokens=layout.cache_tokens,
        cache_mode=options.cache_mode,
        draft_cache_mode=settings.draft.draft_cache_mode,
        slots=layout.slots,
        moe_cpu_offload=options.moe_cpu_offload,
        moe_cpu_split=options.moe_cpu_split,
    )
    models: list[tuple[ComponentName, Any]] = [("vision", layout.vision), ("draft", layout.draft_model)]
    models.append(("model", layout.model))
    expert_layers = [module for module in layout.model if isinstance(module, BlockSparseMLP)]
    return ModelCosts(
        architecture=layout.model.config.architecture,
        context=layout.context,
        sizes=sizes,
        components=tuple(
            _component(name, model, settings, layout.max_history, adapters if name == "model" else 0)
            for name, model in models
            if model is not None
        ),
        experts_per_layer=max((layer.num_experts for layer in expert_layers), default=0),
        expert_layers=len(expert_layers),
        offloadable_layers=sum(_runs_on_cpu(layer) for layer in expert_layers),
        supports_tensor_parallel=bool(layout.model.caps.get("supports_tp")),
        recurrent_interval=layout.model.caps.get("default_recurrent_checkpoint_interval"),
    )


def _component(name: ComponentName, model: Any, settings: EngineSettings, history: int, adapters: int) -> ComponentCost:
    pages: dict[str, dict[str, int]] = {}
    slots: dict[str, int] = {}
    histories: dict[str, int] = {}
    checkpoint = 0
    if name != "vision":
        chosen = settings.draft.draft_cache_mode if name == "draft" else settings.model.cache_mode
        pages = _page_sizes(model, (chosen, *CACHE_MODES))
        slots, checkpoint = _slot_sizes(model, settings, history=0)
        longer, _ = _slot_sizes(model, settings, history=history)
        histories = {key: longer[key] - size for key, size in slots.items()}
    modules = tuple(
        ModuleCost(
            key=module.key,
            weights=_weights(module),
            on_host=bool(module.caps.get("prefer_cpu")),
            page=pages.get(module.key, {}),
            slot=slots.get(module.key, 0),
            history=histories.get(module.key, 0),
            experts=sum(_experts(layer) for layer in module if isinstance(layer, BlockSparseMLP)),
            transient=_transient(module, settings.model.chunk_size),
        )
        for module in model.modules
    )
    return ComponentCost(name=name, modules=modules, checkpoint=checkpoint, adapters=adapters)


def _page_sizes(model: Any, modes: Iterable[str]) -> dict[str, dict[str, int]]:
    """Module -> cache mode -> bytes of one page. A mode that this model's layers cannot have is left out."""
    sizes: dict[str, dict[str, int]] = {}
    for mode in dict.fromkeys(modes):
        try:
            with _attached(model, **cache_layers(mode)) as cache:
                for module in model.modules:
                    layers = _layers_of(model, module, cache.layers, "kv_cache")
                    if layers:
                        sizes.setdefault(module.key, {})[mode] = sum(int(layer.storage_size()) for layer in layers)
        except AssertionError:
            continue
    return sizes


def _slot_sizes(model: Any, settings: EngineSettings, *, history: int) -> tuple[dict[str, int], int]:
    """Module -> bytes of one sequence's recurrent state; and bytes of one checkpoint of all."""
    with _attached(model, max_history=history, recurrent_dtype=state_dtype(settings)) as cache:
        sizes = {
            module.key: sum(
                int(layer.storage_size())
                for layer in _layers_of(model, module, cache.recurrent_layers, "recurrent_cache")
            )
            for module in model.modules
        }
        return sizes, sum(int(layer.get_checkpoint_size()) for layer in cache.recurrent_layers.values())


@contextmanager
def _attached(model: Any, **arguments: Any) -> Iterator[Any]:
    """A cache of one page and one slot that is never allocated, and gone from the model afterwards."""
    cache = Cache(model, max_num_tokens=PAGE_SIZE, max_batch_size=1, **arguments)
    try:
        yield cache
    finally:
        cache.detach_from_model()


def _layers_of(model: Any, module: Any, layers: Mapping[Any, Any], capability: str) -> list[Any]:
    """Those of a cache's layers that belong to one of the loader's modules."""
    return [
        layers[instance]
        for inner in module
        if inner.caps.get(capability)
        for instance in model.get_layer_instances(inner.layer_idx)
    ]


def _weights(module: Any) -> int:
    """Bytes as stored, of the module's own tensors and those that its parts name elsewhere."""
    collection = module.config.stc
    names: set[str] = set()
    keys = [module.key]
    for inner in module:
        if inner.key and not inner.key.startswith(f"{module.key}."):
            keys.append(inner.key)
    for key in dict.fromkeys(keys):
        names |= set(collection.list_tensors(key))
    stored = sum(int(collection.get_tensor_size(name)) for name in names)
    return stored or (int(module.storage_size()) if hasattr(module, "storage_size") else 0)  # a tied head stores none


def _experts(layer: Any) -> int:
    """Bytes of the routed experts, 0 where they cannot be moved to the CPU."""
    if not _runs_on_cpu(layer):
        return 0
    linears = [*layer.gates, *layer.ups, *layer.downs]
    return sum(sum(layer.config.stc.get_tensor_sizes(linear.key)) for linear in linears)


def _runs_on_cpu(layer: Any) -> bool:
    """As exllamav3 decides it (`load_cpu_offload`): experts of the mul1 codebook alone."""
    return bool(layer.ups) and all(layer.config.stc.has_tensor(f"{linear.key}.mul1") for linear in layer.ups[:1])


def _transient(module: Any, chunk_tokens: int) -> int:
    """By exllamav3's own figures for splitting a model over GPUs; coarse where it has none for such a module."""
    if module.caps.get("prefer_cpu"):
        return 0
    makes_logits = bool(module.caps.get("logits_output"))
    tokens = min(chunk_tokens, _LOGIT_ROWS) if makes_logits else chunk_tokens
    try:
        parts = module.make_tp_allocation({})
        needs = [
            # So few rows are multiplied without unpacking the weights first (`AUTO_RECONSTRUCT_THRESHOLD`).
            part.overhead(tokens, part.channels_to_split, part.channels_to_split) - makes_logits * part.recons_temp
            for part in parts
        ]
        return int(max(needs, default=0))
    except Exception:  # assertions on shapes that cannot be split, and modules that were never meant to be
        return _COARSE_COPIES * _HALF * tokens * int(getattr(module.config, "hidden_size", 0) or 0)
