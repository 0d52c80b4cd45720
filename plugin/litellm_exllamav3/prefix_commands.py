"""What is kept of prompts, from the command line: what there is, and how it goes away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
import typer
from rich.console import Console
from rich.table import Table

from litellm_exllamav3.capture import CapturedHead
from litellm_exllamav3.config_file import load_settings
from litellm_exllamav3.faults import SettingsError
from litellm_exllamav3.forgetting import Forgotten
from litellm_exllamav3.gateway import Gateway, open_capture
from litellm_exllamav3.settings import Settings
from litellm_exllamav3.store.errors import StoreUnavailable
from litellm_exllamav3.store.records import StoredChain

SHOWN_DIGITS = 12
"""Of a digest's 32, in the table. As with git's commits they are enough to name one."""

Kept: TypeAlias = CapturedHead | StoredChain

ConfigPath = Annotated[Path, typer.Argument(help="LiteLLM's config file, the one that the proxy is started with.")]


def prefixes(
    config: ConfigPath,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array, for programs.")] = False,
) -> None:
    """List what is kept for each model, most recently used first. Works beside a running proxy.

    A head is the system messages and tools of chats. A chain is what the engine itself found to be shared, in tokens.
    """
    kept = asyncio.run(_all_kept(_settings(config)))
    if as_json:
        typer.echo(orjson.dumps([_row(one) for one in kept]).decode())
        return
    table = Table("model", "kind", "digest", "tokens", "messages", "tools", "last used", highlight=False)
    for one in kept:
        row = {**_row(one), "digest": one.digest[:SHOWN_DIGITS]}
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table, markup=False)


def forget(
    config: ConfigPath,
    digest: Annotated[str, typer.Argument(help="As `prefixes` shows it; its first digits are enough.")],
) -> None:
    """Remove a kept head or chain for good: from the store, files moved aside, the disk cache and the page credit.

    Chains that share a page with it go too. Stop the proxy first: what it has in memory is its own. Where a model has
    a disk cache, it is loaded, since only its tokenizer knows which pages and chains are the head's; without one all
    chains of the model go with a head, and all credit of its pages.
    """
    settings = _settings(config)
    asyncio.run(_forget(settings, _whole_digest(digest, asyncio.run(_all_kept(settings)), config)))


def _whole_digest(digits: str, kept: Sequence[Kept], config: Path) -> str:
    found = sorted({one.digest for one in kept if digits and one.digest.startswith(digits)})
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} digests begin with {digits}" if found else f"nothing with the digest {digits} is kept"
    typer.echo(f"{what}; `litellm-exllamav3 prefixes {config} --json` lists what is", err=True)
    raise typer.Exit(1)


async def _forget(settings: Settings, digest: str) -> None:
    """For every model: two may have kept the same head."""
    gateway = Gateway(settings)
    gateway.open_store()
    try:
        forgotten = {key: await gateway.forget(key, digest) for key in settings.models}
    except StoreUnavailable as error:
        typer.echo(f"the store cannot be written, and nothing was removed: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        await gateway.stop()
    for key, one in forgotten.items():
        if one is not None and one.num_chains:
            typer.echo(_chains_gone(key, one))
    for reason in [one.reason for one in forgotten.values() if one is not None and one.num_pages is None]:
        typer.echo(f"it left the store, but its pages may still be in other files: {reason}", err=True)
        raise typer.Exit(1)
    typer.echo(f"forgot {digest}; a proxy that runs meanwhile has it in memory until it is restarted")


def _chains_gone(key: str, forgotten: Forgotten) -> str:
    if forgotten.all_chains:
        return (
            f"no engine could say which of the chains of {key} hold it, so all {forgotten.num_chains} of them were "
            "removed; those that are still in use are learnt anew"
        )
    return f"of the chains of {key}, {forgotten.num_chains} that hold a part of it were removed"


def _settings(config: Path) -> Settings:
    try:
        return load_settings(config, os.environ)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


async def _all_kept(settings: Settings) -> list[Kept]:
    if not (Path(settings.state_dir) / "prefixes.db").exists():
        return []
    capture = await open_capture(settings)
    kept: list[Kept] = []
    try:
        for key in settings.models:
            of_model: list[Kept] = [*await capture.entries(key), *await capture.chains.entries(key)]
            kept += sorted(of_model, key=lambda one: one.written_at, reverse=True)
    except StoreUnavailable as error:
        typer.echo(f"the store cannot be read: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        await capture.close()
    return kept


def _row(kept: Kept) -> Mapping[str, Any]:
    """Never the text: a list of prefixes may be shown to others than the prompts' owners."""
    head = kept.head if isinstance(kept, CapturedHead) else None
    return {
        "model": kept.model_key,
        "kind": "chain" if head is None else "head",
        "digest": kept.digest,
        "tokens": kept.num_tokens,
        "messages": None if head is None else len(head.messages),
        "tools": None if head is None else len(head.tools),
        "last_used": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(kept.written_at)),
    }
