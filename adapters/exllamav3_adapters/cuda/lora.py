"""LoRA adapters over the loaded model."""

from __future__ import annotations

from typing import Any

from exllamav3.model.lora import LoRA

from exllamav3_adapters.cuda.components import first_line
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed


def check_loras(settings: EngineSettings) -> None:
    """Before anything is loaded. Raises LoadFailed."""
    if settings.loras and settings.model.tensor_parallel:
        # The loader puts the tensors on the modules of this process, and those of a tensor parallel model compute in
        # others.
        raise LoadFailed("lora.loras: adapters do not reach a tensor parallel model; remove one of the two")


def load_loras(settings: EngineSettings, model: Any) -> None:
    """All of them add to every answer, each times its scaling; they go with the model. Raises LoadFailed."""
    for lora in settings.loras:
        try:
            loaded = LoRA.from_directory(model, lora.folder, lora_scaling=lora.scaling)
        except KeyError as error:
            raise LoadFailed(f"lora.loras: adapter_config.json in {lora.folder} has no {error}") from error
        except Exception as error:
            raise LoadFailed(f"lora.loras: {lora.folder} cannot be used: {first_line(error)}") from error
        if not loaded.target_modules:
            raise LoadFailed(f"lora.loras: no tensor in {lora.folder} belongs to a layer of this model")
