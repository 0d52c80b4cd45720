"""All checks of one model, in the order in which a user would correct what they find."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from exllamav3_adapters.demo_model import DEMO
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.preflight.ask_exllamav3 import ask_exllamav3
from exllamav3_adapters.preflight.estimate import estimate, memory_findings
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.folder_checks import folder_findings, text_findings
from exllamav3_adapters.preflight.lora_checks import adapter_bytes, lora_findings
from exllamav3_adapters.preflight.machine import Machine
from exllamav3_adapters.preflight.machine_checks import machine_findings
from exllamav3_adapters.preflight.model_costs import ModelCosts
from exllamav3_adapters.preflight.model_folder import ModelFolder, read_model_folder
from exllamav3_adapters.preflight.option_checks import model_findings, option_findings
from exllamav3_adapters.preflight.report import Report
from exllamav3_adapters.preflight.tier_checks import tier_findings, tier_size_findings


def preflight(settings: EngineSettings, machine: Machine) -> Report:
    """Everything that can be said without loading. Blocks for seconds; imports torch and exllamav3 with the CPU
    engine's stand-in, so call it in a process that loads nothing on a GPU."""
    folder, draft = _folders(settings)
    found = _early(settings, machine, folder, draft)
    if machine.exllamav3 is None or folder is None or not (_is_readable(folder) and _is_readable(draft)):
        return Report(findings=tuple(found))
    answer = ask_exllamav3(settings, folder, draft, adapter_bytes(settings.loras))
    found += [finding for finding in answer.findings if finding.subject not in _error_subjects(found)]
    if answer.costs is None:
        return Report(findings=tuple(found))
    found += costs_findings(settings, answer.costs, machine)
    return Report(findings=tuple(found), estimate=estimate(settings, answer.costs, machine))


def early_findings(settings: EngineSettings, machine: Machine) -> list[Finding]:
    """All that can be known before exllamav3 is imported."""
    return _early(settings, machine, *_folders(settings))


def costs_findings(settings: EngineSettings, costs: ModelCosts, machine: Machine) -> list[Finding]:
    """All that takes knowing what the model is and needs."""
    return [
        *model_findings(settings, costs),
        *tier_size_findings(settings, costs, machine),
        *memory_findings(settings, costs, machine),
    ]


def refuse(settings: EngineSettings, findings: Iterable[Finding]) -> None:
    """Raises LoadFailed with all errors among them, if there are any."""
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        raise LoadFailed(f"model '{settings.model_key}': " + ". ".join(errors))


def _early(
    settings: EngineSettings, machine: Machine, folder: ModelFolder | None, draft: ModelFolder | None
) -> list[Finding]:
    found = [*machine_findings(machine)]
    if folder is not None:
        found += folder_findings(folder, "model.model_dir")
        if folder.exists and folder.files:
            found += text_findings(folder, settings.model.chat_template)
    if draft is not None:
        found += folder_findings(draft, "draft_model.draft_model_dir")
    found += lora_findings(settings.loras)
    found += option_findings(settings, machine)
    found += tier_findings(settings, machine)
    return found


def _folders(settings: EngineSettings) -> tuple[ModelFolder | None, ModelFolder | None]:
    """The model's and the draft model's. The demo model's is made at its first load, and needs no check."""
    options, draft = settings.model, settings.draft
    folder = None if options.model_dir == DEMO else read_model_folder(Path(options.model_dir))
    has_draft = draft.draft_mode == "model" and draft.draft_model_dir is not None
    return folder, read_model_folder(Path(draft.draft_model_dir or "")) if has_draft else None


def _is_readable(folder: ModelFolder | None) -> bool:
    """Whether exllamav3 would not stumble over what is known already."""
    return folder is None or not _error_subjects(folder_findings(folder, ""))


def _error_subjects(findings: Iterable[Finding]) -> set[str]:
    return {finding.subject for finding in findings if finding.severity == "error"}
