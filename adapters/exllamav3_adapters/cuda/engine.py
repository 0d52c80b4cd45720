"""The engine for GPUs: exllamav3's scheduler over its own models."""

from __future__ import annotations

from collections.abc import Callable

from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.cuda.setup_check import check_memory, check_setup
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.load_thread import Report, load_on_thread


class CudaEngine:
    """A `contract.Loader`. Everything that imports torch or exllamav3 is imported at load, on a worker thread."""

    @classmethod
    async def load(cls, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        """Raises LoadFailed, which names the file, package or setting at fault. Cancelling it stops the load before
        the next module and frees what it had allocated."""
        return await load_on_thread(lambda report: _load(settings, report), report)


def _load(settings: EngineSettings, report: Report) -> Engine:
    report(LoadProgress(stage="checking the setup", done=0, total=1))
    machine = check_setup(settings)
    compiles = machine.extension == "missing"
    stage = "compiling exllamav3's extension, which takes minutes" if compiles else "importing exllamav3"
    report(LoadProgress(stage=stage, done=0, total=1))
    _import_exllamav3()
    from exllamav3_adapters.cuda.loading import load_parts
    from exllamav3_adapters.exl3.engine import Exl3Engine

    check_memory(settings, machine)
    loaded = load_parts(settings, report, len(machine.gpus))
    try:
        return Exl3Engine("cuda", settings, loaded)
    except BaseException:
        loaded.release()
        raise


def _import_exllamav3() -> None:
    """It may compile its extension now, which takes minutes."""
    try:
        import exllamav3  # noqa: F401
    except Exception as error:  # of a compiler, a linker or the dynamic loader
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LoadFailed(f"engine cuda: exllamav3 cannot be imported: {lines[0]}") from error
