"""The engine for GPUs. Its place in the registry is taken; what it needs beside `exl3/` comes with a later release."""

from __future__ import annotations

from collections.abc import Callable

from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed


class CudaEngine:
    """A `contract.Loader` that loads nothing yet."""

    @classmethod
    async def load(cls, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        """Raises LoadFailed."""
        raise LoadFailed(
            f"model '{settings.model_key}': engine cuda is not there yet; engine: cpu serves a Hugging Face folder "
            "through the same scheduler without a GPU"
        )
