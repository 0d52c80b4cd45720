"""What a load looks at before it allocates anything: the machine, the model's files, and the memory it will take."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from exllamav3_adapters.demo_model import model_folder
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.estimate import estimate, table
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.lora_checks import adapter_bytes
from exllamav3_adapters.preflight.machine import Machine
from exllamav3_adapters.preflight.read_machine import read_machine
from exllamav3_adapters.preflight.run import costs_findings, early_findings, refuse

log = logging.getLogger(__name__)


def check_setup(settings: EngineSettings) -> Machine:
    """All that can be known before exllamav3 is imported. Blocks for seconds: it imports torch. Warnings go to the log.
    Raises LoadFailed with every fault and its remedy."""
    machine = read_machine(settings)
    _act_on(settings, early_findings(settings, machine))
    return machine


def check_memory(settings: EngineSettings, machine: Machine) -> None:
    """Once exllamav3 is imported. Raises LoadFailed, which says by how much it does not fit and what to set."""
    from exllamav3_adapters.cuda.layout import lay_out
    from exllamav3_adapters.cuda.memory_costs import memory_costs

    layout = lay_out(settings, model_folder(settings.model.model_dir))
    try:
        costs = memory_costs(settings, layout, adapter_bytes(settings.loras))
    except Exception as error:  # of a layer unlike those of 1.6.5: no reason not to load it
        log.warning("%s: no estimate of the memory: %s: %s", settings.model_key, type(error).__name__, error)
        return
    for line in table(estimate(settings, costs, machine)).splitlines():
        log.info("%s: %s", settings.model_key, line)
    _act_on(settings, costs_findings(settings, costs, machine))


def _act_on(settings: EngineSettings, findings: Iterable[Finding]) -> None:
    found = list(findings)
    for finding in found:
        if finding.severity != "error":
            log.warning("%s: %s", settings.model_key, finding)
    refuse(settings, found)
