"""How a folder's weights are stored, by what its files say."""

from __future__ import annotations

import re
from typing import Final

from exllamav3_adapters.preflight.model_folder import ModelFolder

EXL3: Final = "EXL3"
_METHODS: Final = {
    "exl2": "EXL2",
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "FP8",
    "compressed-tensors": "compressed-tensors",
    "mxfp4": "MXFP4",
    "hqq": "HQQ",
    "aqlm": "AQLM",
}
_UNQUANTISED: Final = re.compile(r"^(F16|BF16|F32)$")


def weight_format(folder: ModelFolder) -> str | None:
    """`EXL3`, the name of another format, or None where there are no weights at all."""
    method = folder.quant_method
    if method == "exl3" or (method is None and any(name.endswith(".trellis") for name in folder.tensors)):
        return EXL3
    if method is not None:
        return _METHODS.get(method, method)
    return _by_tensors(folder) or _by_files(folder.files)


def _by_tensors(folder: ModelFolder) -> str | None:
    """Tensors' names by format: those of the formats' own writers."""
    endings = {name.rpartition(".")[2] for name in folder.tensors}
    if "q_weight" in endings and "q_invperm" in endings:
        return "EXL2"
    if {"qweight", "qzeros", "scales"} <= endings:
        return "GPTQ" if "g_idx" in endings else "AWQ"
    if folder.tensors and all(_UNQUANTISED.match(tensor.dtype) for tensor in folder.tensors.values()):
        return "unquantised"
    return "unknown" if folder.tensors else None


def _by_files(names: frozenset[str]) -> str | None:
    endings = {name.rpartition(".")[2].lower() for name in names}
    if "gguf" in endings:
        return "GGUF"
    if any(re.fullmatch(r"pytorch_model.*\.bin|.*\.pth?", name) for name in names):
        return "PyTorch"
    return None
