"""The command `litellm-exllamav3`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from exllamav3_adapters.preflight.estimate import table as estimate_table
from exllamav3_adapters.preflight.report import Report
from litellm_exllamav3.availability import OPTIONS
from litellm_exllamav3.check_json import check_json
from litellm_exllamav3.config_file import SECTION, Config, read_config
from litellm_exllamav3.faults import SettingsError
from litellm_exllamav3.prefix_commands import forget, prefixes
from litellm_exllamav3.preflight import CHECKED_ENGINE, not_together, run_preflight
from litellm_exllamav3.request_fields_reference import request_fields_reference
from litellm_exllamav3.settings_reference import settings_reference as reference
from litellm_exllamav3.settings_table import effective_settings

app = typer.Typer(
    help="Serve exllamav3 models behind a LiteLLM gateway.", no_args_is_help=True, pretty_exceptions_enable=False
)

_WIDEST = 10_000
"""Columns of a table that is piped: no path is ever wrapped."""


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="LiteLLM's config file, the one that the proxy is started with.")],
    everything: Annotated[bool, typer.Option("--all", help="Also options that this engine does not have yet.")] = False,
    config_only: Annotated[
        bool, typer.Option("--config-only", help="Do not look at this machine's GPUs and the models' files.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Validate a config without loading anything, and show the settings that it leads to (`-`: the engine decides).

    Of a model of engine cuda also: what is wrong with its files, with this machine or with its options, and an estimate
    of the memory that it will take. Exits with 1 and names every fault if there are any.
    """
    try:
        found = read_config(config, os.environ)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    reports = {} if config_only else _reports(found)
    if as_json:
        typer.echo(check_json(found, reports))
    else:
        _show(found, everything, reports)
    counts = _tell(found, reports)
    if not as_json:
        typer.echo(f"{config}: {_verdict(*counts)}")
    if counts[0]:
        raise typer.Exit(1)


app.command()(prefixes)
app.command()(forget)


@app.command()
def settings_reference() -> None:
    """Print the configuration reference in Markdown."""
    typer.echo(reference(), nl=False)


@app.command()
def request_fields() -> None:
    """Print in Markdown what becomes of each field of a request."""
    typer.echo(request_fields_reference(), nl=False)


def _reports(config: Config) -> dict[str, Report]:
    """By the key of a model."""
    models = config.settings.models
    return run_preflight(
        {key: config.settings.engine_settings(key) for key in models if models[key].engine == CHECKED_ENGINE}
    )


def _tell(config: Config, reports: Mapping[str, Report]) -> tuple[int, int]:
    """Writes what was found to standard error. Returns the number of errors and of warnings."""
    for warning in config.warnings:
        typer.echo(f"warning: {warning}", err=True)
    severities = ["warning"] * len(config.warnings)
    for key, report in reports.items():
        for finding in report.findings:
            typer.echo(f"{finding.severity}: {key}: {finding}", err=True)
            severities.append(finding.severity)
    together = not_together(reports)
    if together is not None:
        typer.echo(f"warning: {together}", err=True)
        severities.append("warning")
    return severities.count("error"), severities.count("warning")


def _verdict(errors: int, warnings: int) -> str:
    verdict = f"{errors} error{'s' * (errors > 1)}" if errors else "valid"
    return verdict + (f", {warnings} warning{'s' * (warnings > 1)}" if warnings else "")


def _show(config: Config, everything: bool, reports: Mapping[str, Report]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDEST)
    typer.echo(f"state_dir: {config.settings.state_dir}")
    for key, model in config.settings.models.items():
        table = Table("option", "value", "from", title=f"exllamav3/{key}", title_justify="left", highlight=False)
        table.columns[1].overflow = "fold"
        path = (SECTION, "models", key)
        for row in effective_settings(model, path, config.variables, config.settings.credits_dir):
            known = OPTIONS.get(row.option)
            if known is not None and model.engine not in known.engines and row.origin != "set" and not everything:
                continue
            table.add_row(row.option, row.value, row.origin, style="" if row.origin == "set" else "dim")
        console.print(table, markup=False)
        found = reports[key].estimate if key in reports else None
        if found is not None:
            typer.echo(f"estimate of the memory that exllamav3/{key} takes:\n{estimate_table(found)}\n")
