"""Asks exllamav3 what a model takes, without its compiled extension and without a GPU.

For a process that loads nothing: the CPU engine's stand-in takes the extension's place in it, so that nothing is
compiled. The process that loads calls `cuda/memory_costs.py` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.preflight.finding import Finding, finding_of
from exllamav3_adapters.preflight.folder_checks import architecture_findings
from exllamav3_adapters.preflight.model_costs import ModelCosts
from exllamav3_adapters.preflight.model_folder import ModelFolder

_COMPARE: Final = "compare the folder with that of the original model, or use another model"


@dataclass(frozen=True, slots=True)
class Answer:
    """`costs` is None where the findings say why."""

    findings: tuple[Finding, ...]
    costs: ModelCosts | None = None


def ask_exllamav3(settings: EngineSettings, folder: ModelFolder, draft: ModelFolder | None, adapters: int) -> Answer:
    """`adapters`: bytes of LoRA tensors. Imports torch and exllamav3; nothing is allocated."""
    try:
        from exllamav3_adapters.cpu.install import install

        install()
    except (ImportError, LoadFailed) as error:
        return Answer((_no_estimate(str(error)),))
    from exllamav3.architecture.architectures import get_architectures

    from exllamav3_adapters.cuda.layout import lay_out
    from exllamav3_adapters.cuda.memory_costs import memory_costs

    known = get_architectures().keys()
    unknown = [*architecture_findings(folder, known, "model.model_dir")]
    if draft is not None:
        unknown += architecture_findings(draft, known, "draft_model.draft_model_dir")
    if unknown:
        return Answer(tuple(unknown))
    try:
        layout = lay_out(settings, Path(folder.path))
    except LoadFailed as error:
        return Answer((finding_of(error.message, "model.model_dir", _COMPARE),))
    try:
        return Answer((), memory_costs(settings, layout, adapters))
    except Exception as error:  # of a layer that is unlike those of 1.6.5
        return Answer((_no_estimate(f"{type(error).__name__}: {error}"),))


def _no_estimate(why: str) -> Finding:
    return Finding(
        severity="warning",
        subject="exllamav3",
        fault=f"cannot be asked what the model takes ({why})",
        remedy="correct that for an estimate of the memory",
    )
