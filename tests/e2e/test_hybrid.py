"""A hybrid model behind a real proxy, spoken to in text: what its checkpoints spare a long chat, a branch and a
restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from demo_chats import Chats, settled
from proxy_process import Proxy, config
from safetensors.torch import load_file, save_file
from tiny_model import write_tiny_hybrid
from tokenizers import Tokenizer

import exllamav3_adapters

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

HEAD_TOKENS = 2000
NUM_TURNS = 20
EDITED_TURN = 10
TURN_TOKENS = 400
ANSWER_TOKENS = 50
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def text(num_tokens: int, seed: int) -> str:
    """A token of the tiny model is one byte."""
    source = random.Random(seed)
    return "".join(source.choice(LETTERS) for _ in range(num_tokens))


@dataclass
class Chat:
    """One conversation, and what the proxy said of each of its turns."""

    chats: Chats
    messages: list[dict[str, str]]
    known: list[int] = field(default_factory=list)
    """By turn: the tokens of its prompt and of its answer."""
    prompt_tokens: list[int] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)

    async def turn(self, said: str) -> None:
        self.messages.append({"role": "user", "content": said})
        answer = await self.chats.client.chat.completions.create(
            model="local", messages=self.messages, max_tokens=ANSWER_TOKENS, temperature=0
        )
        usage = answer.usage
        self.messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        self.prompt_tokens.append(usage.prompt_tokens)
        self.cached_tokens.append(usage.prompt_tokens_details.cached_tokens)
        self.known.append(usage.total_tokens)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that answers in letters. Random weights would write control tokens too, and those are no text."""
    folder = write_tiny_hybrid(tmp_path_factory.mktemp("hybrid"), max_position_embeddings=16384)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    letters = tokenizer.encode(LETTERS).ids
    weights = load_file(folder / "model.safetensors")
    kept = weights["lm_head.weight"][letters].clone()
    weights["lm_head.weight"].zero_()
    weights["lm_head.weight"][letters] = kept
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@asynccontextmanager
async def running(folder: Path, model_folder: Path, *, frontiers: bool = True) -> AsyncIterator[Chats]:
    """One life of a proxy over the state in `folder`."""
    template = Path(exllamav3_adapters.__file__).with_name("demo_chat_template.jinja")
    model = {
        "engine": "cpu",
        "model": {
            "model_dir": str(model_folder),
            "max_seq_len": 16384,
            "cache_size": 32768,
            "chunk_size": 512,
            "chat_template": str(template),
            "recurrent_frontier_checkpoints": frontiers,
            "recurrent_eviction": "gds",
        },
        "memory": {"sysmem_kv_cache": 64, "sysmem_recurrent_cache": 64},
        "capture": {"min_conversations": 2, "min_tokens": 64, "flush_seconds": 0.1},
    }
    proxy = Proxy(folder, config({"local": model}))
    try:
        await asyncio.to_thread(proxy.start)
        await settled(proxy)
        async with Chats(proxy) as chats:
            yield chats
            await asyncio.to_thread(proxy.terminate)
    finally:
        proxy.clean_up()


def system(head: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": head}]


async def talk(chats: Chats) -> Chat:
    chat = Chat(chats, system(text(HEAD_TOKENS, seed=1)))
    for turn in range(NUM_TURNS):
        await chat.turn(text(TURN_TOKENS, seed=100 + turn))
    return chat


def replayed(chat: Chat) -> list[int]:
    """By turn from the second on: tokens of the turns before, prompts and answers, that were computed again."""
    return [known - cached for cached, known in zip(chat.cached_tokens[1:], chat.known[:-1], strict=True)]


async def test_a_long_chat_and_a_branch_of_it_compute_only_what_is_new(tmp_path: Path, model_folder: Path) -> None:
    async with running(tmp_path, model_folder) as chats:
        chat = await talk(chats)
        assert chat.known[-1] > 10_000
        # The last token of an answer is sampled and not computed: it is new in the next turn.
        assert max(replayed(chat)) <= 1

        branch = Chat(chats, chat.messages[: 1 + 2 * (EDITED_TURN - 1)])
        await branch.turn(text(TURN_TOKENS, seed=200))
        assert branch.cached_tokens[0] >= chat.known[EDITED_TURN - 2] - 1
        assert branch.cached_tokens[0] <= branch.prompt_tokens[0] - TURN_TOKENS
        assert chats.proxy.counter("local", "checkpoint_hits_frontier") >= NUM_TURNS


async def test_without_frontiers_the_same_chat_replays(tmp_path: Path, model_folder: Path) -> None:
    async with running(tmp_path, model_folder, frontiers=False) as chats:
        chat = await talk(chats)
        assert sum(replayed(chat)) > 100 * NUM_TURNS


async def test_new_conversations_compute_only_what_follows_the_head(tmp_path: Path, model_folder: Path) -> None:
    head = text(HEAD_TOKENS, seed=2)
    async with running(tmp_path, model_folder) as chats:
        for seed in (1, 2):
            last = Chat(chats, system(head))
            await last.turn(text(600, seed=seed))
        assert last.cached_tokens[0] >= HEAD_TOKENS, "another conversation brought the head"
        assert chats.proxy.stats()["capture"]["models"]["local"]["captured"] == 1

    async with running(tmp_path, model_folder) as chats:
        assert (await chats.replayed())["items_total"] == 1
        new = Chat(chats, system(head))
        await new.turn(text(600, seed=3))
        assert new.cached_tokens[0] >= HEAD_TOKENS, "the replay brought the head"
