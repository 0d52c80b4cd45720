"""Whether LoRA adapters are there, and what they take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from exllamav3_adapters.engine_settings import LoraOptions
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.model_folder import read_model_folder

_CONFIG = "adapter_config.json"
_HALF_BYTES = 2


def lora_findings(loras: Sequence[LoraOptions]) -> Iterator[Finding]:
    """Of their folders. Whether they fit the model is found at the load."""
    for lora in loras:
        folder = read_model_folder(Path(lora.folder))
        if not folder.exists:
            yield Finding(subject="lora.loras", fault=f"there is no folder {lora.folder}", remedy="correct its name")
        elif _CONFIG not in folder.files or not folder.tensors:
            yield Finding(
                subject="lora.loras",
                fault=f"{lora.folder} is no LoRA adapter: it lacks {_CONFIG} or whole *.safetensors",
                remedy="name a folder in PEFT's format, or download it again",
            )


def adapter_bytes(loras: Sequence[LoraOptions]) -> int:
    """On the GPUs, where every tensor is kept in 16 bits."""
    folders = [read_model_folder(Path(lora.folder)) for lora in loras]
    return sum(_HALF_BYTES * math.prod(tensor.shape) for folder in folders for tensor in folder.tensors.values())
