"""What checkpoints at any position save a hybrid model's chat, and what they cost its decoding.

    python benchmarks/frontiers.py [--turns 20] [--pairs 20] [--json FILE]

Two engines over one random Qwen3-Next model, each in its process, one with `recurrent_frontier_checkpoints` and one
without; only one of them computes at a time. The chat is plain text, as a client sends it: each turn is the one before,
the engine's own answer and 330 new words. Then both decode the same prompts in turns, timed from the first text to the
last, with a stop string that never comes. Exits with 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import transformers
from report import Bound, Figure, Report, Side
from rich.console import Console
from rich.table import Table

from exllamav3_adapters.contract import Engine, Finished, GenerationParams, Prompt, Text
from exllamav3_adapters.demo_model import demo_model_folder
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.hosted import HostedEngine

FIRST_WORDS, NEW_WORDS = 3000, 330
"""A word is about a token."""
ANSWER_TOKENS = 60
DECODED_TOKENS = 200
LEAST_RATIO = 0.97
WORDS = ["the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "with", "as", "his", "they"]
STOP = "\u2603 never \u2603"

console = Console(width=None if sys.stdout.isatty() else 140)


@dataclass(frozen=True, kw_only=True)
class Turn:
    prompt_tokens: int
    known_tokens: int
    """Of those: sent or answered before."""
    replayed_tokens: int
    """Of the known ones: computed again."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="turns of the chat, 20")
    parser.add_argument("--pairs", type=int, default=20, help="answers that each engine is timed at, 20")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    return parser.parse_args()


def write_random_hybrid(folder: Path) -> None:
    """Four layers, one of them attention, with the demo model's tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo_model_folder() / name, folder)
    config = transformers.AutoConfig.for_model(
        "qwen3_next",
        vocab_size=49_152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        mlp_only_layers=[0, 1, 2, 3],
        max_position_embeddings=16_384,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


async def load(folder: Path, *, frontiers: bool) -> HostedEngine:
    model = ModelOptions(
        model_dir=str(folder), max_seq_len=16_384, cache_size=32_768, chunk_size=512,
        recurrent_frontier_checkpoints=frontiers,
    )  # fmt: skip
    settings = EngineSettings(model_key="hybrid", model=model, memory=MemoryOptions(sysmem_kv_cache=256))
    return await HostedEngine.load("cpu", settings, lambda progress: None)


def random_words(count: int, seed: int) -> str:
    source = random.Random(seed)
    return "".join(f" {source.choice(WORDS)}" for _ in range(count))


async def ask(engine: Engine, prompt: Prompt, num_tokens: int) -> tuple[str, Finished, float]:
    """The answer, how it ended, and the seconds from its first text to its end."""
    params = GenerationParams(max_tokens=num_tokens, min_tokens=num_tokens, temperature=0.0, stop=(STOP,))
    text, first = "", 0.0
    async for event in engine.generate(prompt, params):
        if isinstance(event, Text):
            text += event.text
            first = first or time.perf_counter()
        elif isinstance(event, Finished):
            return text, event, time.perf_counter() - first
    raise AssertionError("the stream ended without Finished")


async def chat(engine: Engine, turns: int) -> list[Turn]:
    found: list[Turn] = []
    text, known = random_words(FIRST_WORDS, 0), 0
    for turn in range(turns):
        prompt = await engine.tokenize(text)
        answer, finished, _ = await ask(engine, prompt, ANSWER_TOKENS)
        found.append(
            Turn(
                prompt_tokens=finished.prompt_tokens,
                known_tokens=known,
                replayed_tokens=max(0, known - finished.cached_tokens),
            )
        )
        known = finished.prompt_tokens + finished.completion_tokens
        text += answer + random_words(NEW_WORDS, turn + 1)
    return found


async def decode_rates(with_: Engine, without: Engine, pairs: int) -> tuple[list[float], list[float]]:
    """Tokens a second of each, from answers to the same prompts; who goes first alternates."""
    rates: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs + 1):
        order = [(with_, rates[0]), (without, rates[1])]
        for engine, samples in order if pair % 2 else order[::-1]:
            prompt = await engine.tokenize(random_words(300, 1000 + pair))
            _, _, seconds = await ask(engine, prompt, DECODED_TOKENS)
            if pair:  # the first is to settle
                samples.append((DECODED_TOKENS - 1) / seconds)
    return rates


def turn_table(with_: Sequence[Turn], without: Sequence[Turn]) -> Table:
    table = Table(title="A chat on a hybrid model: known tokens that were computed again")
    for heading in ("turn", "prompt tokens", "known", "with", "without"):
        table.add_column(heading, justify="right")
    for number, (ours, stock) in enumerate(zip(with_, without, strict=True), start=1):
        row = number, ours.prompt_tokens, ours.known_tokens, ours.replayed_tokens, stock.replayed_tokens
        table.add_row(*map(str, row), end_section=number == len(with_))
    totals = (sum(turn.replayed_tokens for turn in turns) for turns in (with_, without))
    table.add_row("all", "", "", *map(str, totals), style="bold")
    return table


def decode_figure(with_: list[float], without: list[float]) -> Figure:
    return Figure(
        name=f"decode rate, {DECODED_TOKENS} tokens",
        unit="tokens/s",
        statistic="median",
        measured=Side("with", with_),
        against=Side("without", without),
        bound=Bound(rule=f"{LEAST_RATIO} x without", value=LEAST_RATIO * statistics.median(without), at_least=True),
    )


async def measure(options: argparse.Namespace, folder: Path) -> int:
    write_random_hybrid(folder)
    report = Report(title="Frontier checkpoints: measured, and what it is held against (number of samples)")
    report.note_load("at the start")
    with_, without = await load(folder, frontiers=True), await load(folder, frontiers=False)
    try:
        console.print(f"a chat of {options.turns} turns, with and without")
        turns = await chat(with_, options.turns), await chat(without, options.turns)
        console.print(f"{options.pairs} answers of {DECODED_TOKENS} tokens each")
        rates = await decode_rates(with_, without, options.pairs)
    finally:
        await asyncio.gather(with_.close(), without.close())
    report.add("decode", [decode_figure(*rates)])
    worst = max(turn.replayed_tokens for turn in turns[0][1:])
    ratios = sorted(ours / stock for ours, stock in zip(*rates, strict=True))
    console.print(turn_table(*turns), report.table())
    console.print(f"ratio of pairs: median {statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}")
    console.print(f"most known tokens computed again in a turn: {worst}, at most 1")
    console.print("load average of the last minute:", report.load_averages)
    if options.json is not None:
        chats = {"with": list(map(asdict, turns[0])), "without": list(map(asdict, turns[1]))}
        options.json.write_text(json.dumps({"chats": chats, **report.as_json()}, indent=1))
    return 1 if report.missed or worst > 1 else 0


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="litellm-exllamav3-bench-") as name:
        return asyncio.run(measure(options, Path(name)))


if __name__ == "__main__":
    sys.exit(main())
