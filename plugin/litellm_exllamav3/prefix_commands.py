"""The heads that are kept, from the command line: what there is, and how it goes away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from litellm_exllamav3.capture import Capture, CapturedHead
from litellm_exllamav3.config_file import load_settings
from litellm_exllamav3.faults import SettingsError
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.settings import Settings
from litellm_exllamav3.store.errors import StoreUnavailable

SHOWN_DIGITS = 12
"""Of a digest's 32, in the table. As with git's commits they are enough to name one."""

ConfigPath = Annotated[Path, typer.Argument(help="LiteLLM's config file, the one that the proxy is started with.")]


def prefixes(
    config: ConfigPath,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array, for programs.")] = False,
) -> None:
    """List the heads that are kept for each model, most recently used first. Works beside a running proxy."""
    heads = asyncio.run(_kept_heads(_settings(config)))
    if as_json:
        typer.echo(orjson.dumps([_row(head) for head in heads]).decode())
        return
    table = Table("model", "digest", "tokens", "messages", "tools", "last used", highlight=False)
    for head in heads:
        row = {**_row(head), "digest": head.digest[:SHOWN_DIGITS]}
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table, markup=False)


def forget(
    config: ConfigPath,
    digest: Annotated[str, typer.Argument(help="As `prefixes` shows it; its first digits are enough.")],
) -> None:
    """Remove a kept head for good: from the store, from files moved aside, and from the disk cache.

    Stop the proxy first: what it has in memory is its own. Where a model has a disk cache, it is loaded, since only
    its tokenizer knows which pages are the head's.
    """
    settings = _settings(config)
    asyncio.run(_forget(settings, _whole_digest(digest, asyncio.run(_kept_heads(settings)), config)))


def _whole_digest(digits: str, heads: Sequence[CapturedHead], config: Path) -> str:
    found = sorted({head.digest for head in heads if digits and head.digest.startswith(digits)})
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} heads begin with {digits}" if found else f"no head {digits} is kept"
    typer.echo(f"{what}; `litellm-exllamav3 prefixes {config} --json` lists what is", err=True)
    raise typer.Exit(1)


async def _forget(settings: Settings, digest: str) -> None:
    """For every model: two may have kept the same head."""
    gateway = Gateway(settings)
    gateway.open_store()
    try:
        forgotten = [await gateway.forget(key, digest) for key in settings.models]
    except StoreUnavailable as error:
        typer.echo(f"the store cannot be written, and nothing was removed: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        await gateway.stop()
    for reason in [one.reason for one in forgotten if one is not None and one.num_pages is None]:
        typer.echo(f"it left the store, but its pages may still be in the disk cache: {reason}", err=True)
        raise typer.Exit(1)
    typer.echo(f"forgot {digest}; a proxy that runs meanwhile has it in memory until it is restarted")


def _settings(config: Path) -> Settings:
    try:
        return load_settings(config, os.environ)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


async def _kept_heads(settings: Settings) -> list[CapturedHead]:
    if not (Path(settings.state_dir) / "prefixes.db").exists():
        return []
    capture = await Capture.open(Path(settings.state_dir), {key: m.capture for key, m in settings.models.items()})
    try:
        return [head for key in settings.models for head in await capture.entries(key)]
    except StoreUnavailable as error:
        typer.echo(f"the store cannot be read: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        await capture.close()


def _row(head: CapturedHead) -> Mapping[str, Any]:
    """Never the text: a list of prefixes may be shown to others than the prompts' owners."""
    return {
        "model": head.model_key,
        "digest": head.digest,
        "tokens": head.num_tokens,
        "messages": len(head.head.messages),
        "tools": len(head.head.tools),
        "last_used": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(head.written_at)),
    }
