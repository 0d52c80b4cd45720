"""The engine for machines without a GPU: exllamav3's scheduler over a transformers model."""

from __future__ import annotations

from collections.abc import Callable

from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.load_thread import load_on_thread


class CpuEngine:
    """A `contract.Loader`. Everything that imports torch or exllamav3 is imported at load, on a worker thread."""

    @classmethod
    async def load(cls, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        """Raises LoadFailed, which names the file, package or setting at fault."""
        return await load_on_thread(lambda report: _load(settings, report), report)


def _load(settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
    report(LoadProgress(stage="importing torch and exllamav3", done=0, total=1))
    from exllamav3_adapters.cpu.install import install

    install()  # before the first import of exllamav3
    from exllamav3_adapters.cpu.loading import load_parts, with_defaults
    from exllamav3_adapters.exl3.engine import Exl3Engine

    settings = with_defaults(settings)
    return Exl3Engine("cpu", settings, load_parts(settings, report))
