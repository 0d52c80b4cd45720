"""What a check of one model found. Plain values: they cross a process boundary."""

from __future__ import annotations

from dataclasses import dataclass

from exllamav3_adapters.preflight.estimate import Estimate
from exllamav3_adapters.preflight.finding import Finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Of one model."""

    findings: tuple[Finding, ...]
    estimate: Estimate | None = None
    """None where the model could not be asked: the findings say why."""
