"""`make demo`: a hot prompt head survives a restart of the gateway.

Starts the proxy on `litellm_config.yaml` (a copy, with a state folder of its own), sends chats that share a head,
restarts it with replay off and then with replay on, and shows what the head's first use costs each time. Exits
non-zero where replay did not bring back 90 % of the head, or where the run without replay was warm all the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from gateway_process import GatewayProcess, running_gateway
from openai import OpenAI
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

CONFIG = Path(__file__).resolve().parent.parent / "litellm_config.yaml"
MODEL_KEY = "smollm2"
REPLAY_SECONDS = 180.0
LEAST_REUSE_WITH_REPLAY = 0.90
MOST_REUSE_WITHOUT_REPLAY = 0.05
MOST_OF_COLD = 0.25
MOST_OF_WARM = 1.5
TOPICS = [
    "delivery",
    "returns",
    "payment",
    "warranty",
    "stock",
    "vouchers",
    "invoices",
    "accounts",
    "discounts",
    "repairs",
]

console = Console()


@dataclass(frozen=True)
class FirstUse:
    """One streamed chat: seconds to its first piece of text, and what the engine had to compute."""

    what: str
    seconds: float
    prompt_tokens: int
    cached_tokens: int


def head() -> str:
    """A system prompt of about 2,700 tokens, of the kind that agents send with each request."""
    rules = [
        f"Rule {number}: when a customer writes about {TOPICS[number % len(TOPICS)]}, answer in at most "
        f"{number % 4 + 2} sentences, name the order by its number, and promise no date that the warehouse has not "
        "confirmed."
        for number in range(1, 68)
    ]
    return "\n".join(["You are the support assistant of a small shop.", *rules])


def ask(client: OpenAI, what: str, question: str, *, system: str | None = None) -> FirstUse:
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    started = time.perf_counter()
    first_text: float | None = None
    usage = None
    for chunk in client.chat.completions.create(
        model="local",
        messages=messages,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        if first_text is None and chunk.choices and chunk.choices[0].delta.content:
            first_text = time.perf_counter() - started
        usage = chunk.usage or usage
    assert first_text is not None, "the model answered with no text"
    assert usage is not None, "the stream carried no usage"
    details = usage.prompt_tokens_details
    return FirstUse(what, first_text, usage.prompt_tokens, (details.cached_tokens if details else 0) or 0)


def settled_client(gateway: GatewayProcess) -> OpenAI:
    """A process's first request is slow in LiteLLM, whatever it is, and so is a model's first: send both before."""
    client = OpenAI(base_url=gateway.base_url, api_key=gateway.master_key, timeout=600, max_retries=0)
    client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "Hello"}])
    ask(client, "settle", "Say hello.")
    return client


def write_config(folder: Path, *, replay: bool) -> Path:
    config = yaml.safe_load(CONFIG.read_text())
    config["exllamav3_settings"]["models"][MODEL_KEY]["replay"] = replay
    path = folder / "litellm_config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def stored_heads(config: Path) -> list[dict[str, Any]]:
    command = [str(Path(sys.executable).with_name("litellm-exllamav3")), "prefixes", str(config), "--json"]
    heads: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return heads


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says what is being done, and on a terminal for how long already."""
    console.print(what)
    columns = (SpinnerColumn(), TextColumn("[progress.description]{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("working", total=None)
        yield


def measure(folder: Path) -> tuple[list[FirstUse], list[dict[str, Any]]]:
    """The four first uses, in the order of the table, and what the store holds in the end."""
    system = head()
    config = write_config(folder, replay=True)
    with (
        step("[bold]1/3[/] first start, nothing cached yet: two conversations that share a head"),
        running_gateway(config, folder / "first.log") as gateway,
    ):
        client = settled_client(gateway)
        cold = ask(client, "cold", "Where is order 1007?", system=system)
        warm = ask(client, "warm, in memory", "May I return a lamp?", system=system)
    heads = stored_heads(config)

    with (
        step("[bold]2/3[/] restart with replay off: a third conversation"),
        running_gateway(write_config(folder, replay=False), folder / "second.log") as gateway,
    ):
        client = settled_client(gateway)
        without = ask(client, "restart, replay off", "Is the red chair in stock?", system=system)

    with (
        step("[bold]3/3[/] restart with replay on: a fourth, once replay is done"),
        running_gateway(write_config(folder, replay=True), folder / "third.log") as gateway,
    ):
        line = gateway.wait_for_log("replay done", REPLAY_SECONDS)
        client = settled_client(gateway)
        replayed = ask(client, "restart, replay on", "Do you repair clocks?", system=system)
    console.print(line.partition("model ")[2], highlight=False, soft_wrap=True)
    return [cold, warm, without, replayed], heads


def show(uses: list[FirstUse], heads: list[dict[str, Any]]) -> None:
    table = Table(title="First use of a head of 2,600 tokens")
    for heading in ("", "time to first token", "prompt tokens", "from the cache"):
        table.add_column(heading, justify="left" if not heading else "right")
    for use in uses:
        table.add_row(use.what, f"{use.seconds:.2f} s", str(use.prompt_tokens), str(use.cached_tokens))
    console.print(table)
    store = Table(title="The store")
    for heading in ("model", "head", "tokens", "messages", "tools"):
        store.add_column(heading)
    for entry in heads:
        store.add_row(*(str(entry[key]) for key in ("model", "digest", "tokens", "messages", "tools")))
    console.print(store)


def faults(uses: list[FirstUse], heads: list[dict[str, Any]]) -> list[str]:
    if not heads:
        return ["no head was captured"]
    head_tokens = max(entry["tokens"] for entry in heads)
    _, _, without, replayed = uses
    found = []
    if replayed.cached_tokens < LEAST_REUSE_WITH_REPLAY * head_tokens:
        found.append(f"with replay only {replayed.cached_tokens} of the head's {head_tokens} tokens were cached")
    if without.cached_tokens > MOST_REUSE_WITHOUT_REPLAY * head_tokens:
        found.append(f"without replay {without.cached_tokens} of the head's {head_tokens} tokens were cached already")
    return found


def verdict(uses: list[FirstUse]) -> str:
    cold, warm, _, replayed = uses
    said = (
        f"After a restart with replay, the head's first use takes {replayed.seconds / cold.seconds:.2f} of the cold "
        f"time and {replayed.seconds / warm.seconds:.2f} of a hit in memory."
    )
    if replayed.seconds > MOST_OF_COLD * cold.seconds or replayed.seconds > MOST_OF_WARM * warm.seconds:
        said += (
            f"\n[yellow]That is more than the {MOST_OF_COLD} and {MOST_OF_WARM} of a quiet machine:[/] the engine "
            "leaves the processor to whatever else runs. The token counts hold; repeat the demo for the times."
        )
    return said


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="litellm-exllamav3-demo-") as name:
        uses, heads = measure(Path(name))
    show(uses, heads)
    found = faults(uses, heads)
    for fault in found:
        console.print(f"[red]failed:[/] {fault}")
    if not found:
        console.print(verdict(uses))
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        console.print("interrupted; the proxy has been stopped")
        sys.exit(130)
