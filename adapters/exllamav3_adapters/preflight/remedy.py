"""What to change, and to what, so that a model fits: the smallest change of each kind that would."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.byte_size import shown_bytes
from exllamav3_adapters.preflight.machine import Gpu
from exllamav3_adapters.preflight.model_costs import PAGE_TOKENS, ModelCosts, Sizes
from exllamav3_adapters.preflight.placement import place

_LEAST_CONTEXT = 2048
"""Tokens. A shorter context is no remedy."""

Fits = Callable[[Sizes], bool]


def remedies(settings: EngineSettings, costs: ModelCosts, gpus: Sequence[Gpu]) -> list[str]:
    """Each alone makes the model fit, by the estimate; the mildest first. Empty: no single one does."""

    def fits(sizes: Sizes) -> bool:
        return place(settings, costs, sizes, gpus).fits

    found = [
        *_smaller_cache(costs, fits),
        *_fewer_bits(settings, costs, fits),
        *_fewer_slots(costs, fits),
        *_experts_on_cpu(settings, costs, fits),
    ]
    return found or [*_shorter_context(costs, fits), *_all_together(costs, fits)]


def nothing_fits(settings: EngineSettings, costs: ModelCosts, gpus: Sequence[Gpu]) -> str:
    """The remedy where no setting is one."""
    least = _smallest(costs, costs.context)
    missing = place(settings, costs, least, gpus).missing
    fewer = "free the GPUs of other programs, " if any(gpu.free < gpu.total * 0.9 for gpu in gpus) else ""
    return (
        f"{fewer}use a version of the model with fewer bits a weight, a smaller model, or more GPUs: with the smallest "
        f"cache {shown_bytes(missing)} are still missing"
    )


def _smaller_cache(costs: ModelCosts, fits: Fits) -> Iterator[str]:
    tokens = _largest_cache(costs.sizes, costs.context, fits)
    if tokens is not None:
        yield f"lower model.cache_size from {costs.sizes.cache_tokens} to {tokens} tokens"


def _fewer_bits(settings: EngineSettings, costs: ModelCosts, fits: Fits) -> Iterator[str]:
    for mode in _modes_below(costs, costs.sizes.cache_mode):
        if fits(dataclasses.replace(costs.sizes, cache_mode=mode)):
            yield f'set model.cache_mode to "{mode}"'
            return
    if settings.draft.draft_mode in ("model", "mtp"):
        for mode in _modes_below(costs, costs.sizes.cache_mode):
            if fits(dataclasses.replace(costs.sizes, cache_mode=mode, draft_cache_mode=mode)):
                yield f'set model.cache_mode and draft_model.draft_cache_mode to "{mode}"'
                return


def _fewer_slots(costs: ModelCosts, fits: Fits) -> Iterator[str]:
    if not any(component.is_recurrent for component in costs.components):
        return
    slots = _largest(1, costs.sizes.slots - 1, lambda count: fits(dataclasses.replace(costs.sizes, slots=count)))
    if slots is not None:
        yield (
            f"lower model.max_batch_size from {costs.sizes.slots} to {slots} (each of its sequences keeps a recurrent "
            "state on the GPU)"
        )


def _experts_on_cpu(settings: EngineSettings, costs: ModelCosts, fits: Fits) -> Iterator[str]:
    sizes = costs.sizes
    if not costs.offloadable_layers or settings.model.tensor_parallel or sizes.moe_cpu_split:
        return
    least = next(
        (
            layers
            for layers in range(sizes.moe_cpu_offload + 1, costs.offloadable_layers + 1)
            if fits(dataclasses.replace(sizes, moe_cpu_offload=layers))
        ),
        None,
    )
    if least is not None:
        yield f"set model.moe_cpu_offload to {least} (experts in system memory, slower)"


def _shorter_context(costs: ModelCosts, fits: Fits) -> Iterator[str]:
    tokens = _largest_cache(costs.sizes, _LEAST_CONTEXT, fits)
    if tokens is not None:
        yield f"set model.max_seq_len and model.cache_size to {tokens} tokens, from {costs.context}"


def _all_together(costs: ModelCosts, fits: Fits) -> Iterator[str]:
    """The largest context with every other size at its least."""
    least = _smallest(costs, costs.sizes.cache_tokens)
    tokens = _largest_cache(least, _LEAST_CONTEXT, fits)
    if tokens is None:
        return
    parts = [f"set model.max_seq_len and model.cache_size to {tokens}"] if tokens < costs.sizes.cache_tokens else []
    if least.cache_mode != costs.sizes.cache_mode:
        parts.append(f'model.cache_mode to "{least.cache_mode}"')
    if least.draft_cache_mode != costs.sizes.draft_cache_mode:
        parts.append(f'draft_model.draft_cache_mode to "{least.draft_cache_mode}"')
    if least.slots != costs.sizes.slots:
        parts.append(f"model.max_batch_size to {least.slots}")
    yield "all together: " + ", ".join(parts)


def _smallest(costs: ModelCosts, tokens: int) -> Sizes:
    modes = _modes_below(costs, costs.sizes.cache_mode)
    has_draft = any(component.name == "draft" for component in costs.components)
    is_recurrent = any(component.is_recurrent for component in costs.components)
    return dataclasses.replace(
        costs.sizes,
        cache_tokens=-(-min(tokens, costs.sizes.cache_tokens) // PAGE_TOKENS) * PAGE_TOKENS,
        cache_mode=modes[-1] if modes else costs.sizes.cache_mode,
        draft_cache_mode=modes[-1] if modes and has_draft else costs.sizes.draft_cache_mode,
        slots=1 if is_recurrent else costs.sizes.slots,
    )


def _modes_below(costs: ModelCosts, mode: str) -> list[str]:
    """Cache modes of this model that take less than the given one, from the largest. Empty without a K/V cache."""
    page: dict[str, int] = {}
    for component in costs.components:
        if component.name == "model":
            for module in component.modules:
                for known, size in module.page.items():
                    page[known] = page.get(known, 0) + size
    if mode not in page:
        return []
    return sorted((known for known in page if page[known] < page[mode]), key=lambda known: -page[known])


def _largest_cache(sizes: Sizes, least_tokens: int, fits: Fits) -> int | None:
    """Tokens, of at least so many and fewer than now."""
    pages = _largest(
        -(-least_tokens // PAGE_TOKENS),
        sizes.cache_tokens // PAGE_TOKENS - 1,
        lambda pages: fits(dataclasses.replace(sizes, cache_tokens=pages * PAGE_TOKENS)),
    )
    return None if pages is None else pages * PAGE_TOKENS


def _largest(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The largest number that works, where all below it do as well. None: not even `low`."""
    if low > high or not works(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if works(middle) else (low, middle - 1)
    return low
