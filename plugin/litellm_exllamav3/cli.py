"""The command `litellm-exllamav3`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from litellm_exllamav3.availability import OPTIONS
from litellm_exllamav3.config_file import SECTION, Config, read_config
from litellm_exllamav3.faults import SettingsError
from litellm_exllamav3.prefix_commands import forget, prefixes
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
) -> None:
    """Validate a config without loading anything, and show the settings that it leads to (`-`: the engine decides).

    Exits with 1 and names every fault if there are any.
    """
    try:
        found = read_config(config, os.environ)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    _show(found, everything)
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    count = len(found.warnings)
    typer.echo(f"{config}: valid" + (f", {count} warning{'s' * (count > 1)}" if count else ""))


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


def _show(config: Config, everything: bool) -> None:
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
