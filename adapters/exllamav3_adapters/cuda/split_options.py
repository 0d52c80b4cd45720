"""How a model is laid out over the GPUs, as arguments of exllamav3's `Model.load_gen`.

GiB there are what its documentation calls GB. With a list of reserves the GPUs beyond it keep the loader's own 0.5 GiB
free, and a negative reserve leaves a GPU out.
"""

from __future__ import annotations

from typing import Any, Final

from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed

_LEFT_OUT: Final = -1.0
_DEFAULT_RESERVE_GIBIBYTES: Final = 0.5
_MEBIBYTES_PER_GIBIBYTE: Final = 1024


def main_split(options: ModelOptions, num_gpus: int) -> dict[str, Any]:
    """For the model itself. On a single GPU there is nothing to split. Raises LoadFailed."""
    if num_gpus == 1:
        return _reserve(options, [False])
    memory = _use("model.gpu_split", options.gpu_split, num_gpus) if options.gpu_split else None
    if memory is None:
        only_first = not options.gpu_split_auto and not options.tensor_parallel
        memory = _reserve(options, [only_first and index > 0 for index in range(num_gpus)])
    return memory | (_tensor_parallel(options) if options.tensor_parallel else {})


def draft_split(settings: EngineSettings, num_gpus: int) -> dict[str, Any]:
    """For a draft model or head: never tensor parallel. Raises LoadFailed."""
    if num_gpus > 1 and settings.draft.draft_gpu_split:
        return _use("draft_model.draft_gpu_split", settings.draft.draft_gpu_split, num_gpus)
    return component_split(settings.model, num_gpus)


def component_split(options: ModelOptions, num_gpus: int) -> dict[str, Any]:
    """For what is loaded beside the model: automatic, on the GPUs that the model may use."""
    split = options.gpu_split if num_gpus > 1 else ()
    only_first = num_gpus > 1 and not split and not options.gpu_split_auto and not options.tensor_parallel
    unused = [
        (only_first and index > 0) or bool(split and (index >= len(split) or not split[index]))
        for index in range(num_gpus)
    ]
    return _reserve(options, unused)


def options_of_several_gpus(settings: EngineSettings) -> list[str]:
    """Options that are set and that mean nothing on a single GPU."""
    options, split = settings.model, "gpu_split"
    named = {
        "model.tensor_parallel": options.tensor_parallel,
        f"model.{split}": bool(options.gpu_split),
        f"draft_model.draft_{split}": bool(settings.draft.draft_gpu_split),
    }
    return [name for name, is_set in named.items() if is_set]


def _use(option: str, gibibytes: tuple[float, ...], num_gpus: int) -> dict[str, Any]:
    if any(gibibytes[num_gpus:]):
        raise LoadFailed(f"{option}: gives memory on {len(gibibytes)} GPUs, and this machine has {num_gpus}")
    if not any(gibibytes):
        raise LoadFailed(f"{option}: gives no GPU any memory; give at least one a positive number of GiB")
    return {"use_per_device": list(gibibytes[:num_gpus])}


def _reserve(options: ModelOptions, left_out: list[bool]) -> dict[str, Any]:
    reserves = [mebibytes / _MEBIBYTES_PER_GIBIBYTE for mebibytes in options.autosplit_reserve[: len(left_out)]]
    if not any(left_out):
        return {"reserve_per_device": reserves}
    padded = reserves + [_DEFAULT_RESERVE_GIBIBYTES] * (len(left_out) - len(reserves))
    return {
        "reserve_per_device": [_LEFT_OUT if out else reserve for out, reserve in zip(left_out, padded, strict=True)]
    }


def _tensor_parallel(options: ModelOptions) -> dict[str, Any]:
    return {
        "tensor_p": True,
        "tp_backend": options.tensor_parallel_backend,
        "tp_options": {"moe_tensor_split": options.tensor_parallel_moe_split},
        "tp_dev_limits": dict(options.tensor_parallel_limits),
    }
