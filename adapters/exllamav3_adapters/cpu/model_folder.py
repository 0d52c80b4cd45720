"""What a folder must hold before torch is asked to load it. No torch here: a wrong folder is found at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exllamav3_adapters.errors import LoadFailed

# Names of tensors that only these formats have.
_TENSOR_FORMATS = {".trellis": "EXL3", ".q_weight": "EXL2", ".qweight": "GPTQ or AWQ"}


def read_model_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a folder that the CPU engine can load.

    Raises `LoadFailed` for a folder that is missing, incomplete, or in a format for another engine.
    """
    if not folder.is_dir():
        raise LoadFailed(f"model_dir: there is no folder {folder}")
    config = _read_config(folder)
    _refuse_quantised(folder, config)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        found = [pattern for pattern in ("*.gguf", "*.bin", "*.pth", "*.onnx") if list(folder.glob(pattern))]
        raise LoadFailed(
            f"model_dir: {folder} holds no *.safetensors (weights found: {', '.join(found) or 'none'}); "
            "engine cpu reads no other format"
        )
    _refuse_quantised_tensors(folder, weights)
    if not (folder / "tokenizer.json").is_file():
        raise LoadFailed(f"model_dir: {folder} holds no tokenizer.json; save the model's fast tokenizer there")
    return config


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        if list(folder.glob("*.gguf")):
            raise LoadFailed(
                f"model_dir: {folder} holds a GGUF file and no config.json. GGUF is not supported; "
                "use the model's original safetensors folder"
            )
        raise LoadFailed(f"model_dir: {folder} holds no config.json, so it is not a Hugging Face model folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadFailed(f"model_dir: {path} is not readable JSON ({error})") from error
    if not isinstance(config, dict):
        raise LoadFailed(f"model_dir: {path} holds no JSON object")
    return config


def _refuse_quantised(folder: Path, config: dict[str, Any]) -> None:
    quantisation = config.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, dict) else "unknown"
        raise LoadFailed(_other_format(folder, str(method).upper()))


def _refuse_quantised_tensors(folder: Path, weights: list[Path]) -> None:
    for path in weights:
        for name in _tensor_names(path):
            for suffix, kind in _TENSOR_FORMATS.items():
                if name.endswith(suffix):
                    raise LoadFailed(_other_format(folder, kind))


def _other_format(folder: Path, kind: str) -> str:
    if kind == "EXL3":
        return f"model_dir: {folder} is an EXL3 folder, which needs a GPU; use engine: cuda"
    return f"model_dir: {folder} is quantised ({kind}); engine cpu loads float32, float16 or bfloat16 safetensors"


def _tensor_names(path: Path) -> list[str]:
    """Names in the header of a safetensors file: 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError(f"header of {length} bytes in a file of {path.stat().st_size}")
            return list(json.loads(file.read(length)))
    except (OSError, ValueError) as error:
        raise LoadFailed(f"model_dir: {path} is damaged ({error}); fetch it again") from error
