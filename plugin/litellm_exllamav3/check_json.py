"""What `litellm-exllamav3 check` found, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from exllamav3_adapters.preflight.report import Report
from litellm_exllamav3.config_file import SECTION, Config
from litellm_exllamav3.settings_table import effective_settings


def check_json(config: Config, reports: Mapping[str, Report]) -> str:
    """`{state_dir, warnings, models: {KEY: {settings, findings, estimate}}}`; sizes in bytes. No secret and no prompt
    is in it. `findings` and `estimate` are null for a model that was not checked."""
    document = {
        "state_dir": config.settings.state_dir,
        "warnings": [str(warning) for warning in config.warnings],
        "models": {key: _model(config, key, reports.get(key)) for key in config.settings.models},
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _model(config: Config, key: str, report: Report | None) -> dict[str, Any]:
    rows = effective_settings(
        config.settings.models[key], (SECTION, "models", key), config.variables, config.settings.credits_dir
    )
    return {
        "settings": {row.option: {"value": row.value, "from": row.origin} for row in rows},
        "findings": None if report is None else report.findings,
        "estimate": None if report is None else report.estimate,
    }
