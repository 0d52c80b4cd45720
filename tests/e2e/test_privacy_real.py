"""What real requests leave on disk, in text and in tokens, with every tier of the cache on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from demo_chats import Chats, local, new_head, rendered_head, settled, text_traces, token_ids, token_traces
from proxy_process import Proxy, config

pytestmark = [pytest.mark.model, pytest.mark.full, pytest.mark.timeout(600)]

MODEL = local(
    # Two conversations fill the cache, so that pages also leave it for the tiers while others come.
    model={"model_dir": "demo", "max_seq_len": 2048, "cache_size": 2048, "chunk_size": 512},
    memory={"sysmem_kv_cache": 256, "disk_cache_dir": "state/pages", "disk_cache_write_interval": 0.1},
)


@dataclass(frozen=True, kw_only=True)
class Talk:
    """A head and what was asked with it, each some pages long and of words that nobody else has."""

    head: str
    questions: tuple[str, str]

    @classmethod
    def of(cls, num_tokens: int) -> Talk:
        return cls(head=new_head(num_tokens), questions=(new_head(300), new_head(300)))

    @property
    def head_tokens(self) -> list[int]:
        return token_ids(rendered_head(self.head))

    def traces(self, content: bytes) -> tuple[float, float, float]:
        """How much of the head's text, of its tokens, and of the tokens of what was asked is there.

        Only full pages are ever on disk, so never all of the last.
        """
        # From the head's own first word on: what the template says before it is everybody's.
        head = token_traces(content, self.head_tokens[8:-3])
        asked = [token_traces(content, token_ids(question)[2:]) for question in self.questions]
        return text_traces(content, self.head), head, max(asked)


@dataclass(frozen=True, kw_only=True)
class Remains:
    """The files of a proxy that was stopped, and what it had been told."""

    proxy: Proxy
    secret: Talk
    """With `no-log`."""
    learned: Talk
    other: Talk

    def content(self) -> bytes:
        state = self.proxy.folder / "state"
        return b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remains]:
    proxy = Proxy(tmp_path_factory.mktemp("privacy"), config({"local": MODEL}))
    remains = Remains(proxy=proxy, secret=Talk.of(600), learned=Talk.of(550), other=Talk.of(650))
    try:
        proxy.start()
        asyncio.run(_talk(remains))
        proxy.terminate()
        assert proxy.left_behind() == []
        yield remains
    finally:
        proxy.clean_up()


async def _talk(remains: Remains) -> None:
    await settled(remains.proxy)
    secret, learned, other = remains.secret, remains.learned, remains.other
    async with Chats(remains.proxy) as chats:
        await chats.ask(secret.head, secret.questions[0], extra_body={"no-log": True}, stream=True)
        for index in range(2):
            await chats.ask(learned.head, learned.questions[index])
            await chats.ask(other.head, other.questions[index])
        # In the cache when the proxy stops, while the first is behind it.
        await chats.ask(secret.head, secret.questions[1], extra_body={"no-log": True})
        evictions = chats.proxy.counter("local", "evictions")
        assert evictions > 0, "no page has left the cache, so the tiers were not tried"


def test_a_request_with_no_log_leaves_neither_text_nor_tokens(remains: Remains) -> None:
    content = remains.content()
    # What is searched for can be found: the others did leave it.
    assert min(remains.learned.traces(content)) > 0.3
    assert min(remains.other.traces(content)) > 0.3
    assert remains.secret.traces(content) == (0, 0, 0)


def test_no_prompt_is_in_the_log(remains: Remains) -> None:
    log = remains.proxy.log.encode()
    assert [text_traces(log, talk.head) for talk in (remains.secret, remains.learned, remains.other)] == [0, 0, 0]


def test_a_forgotten_head_leaves_neither_text_nor_tokens(remains: Remains) -> None:
    before = remains.other.traces(remains.content())
    kept = {head["tokens"]: head["digest"] for head in json.loads(_command(remains, "prefixes", "--json"))}
    assert len(kept) == 2
    # A head may end some tokens into what the template puts before the user's words.
    digest = kept.pop(min(kept, key=lambda num_tokens: abs(num_tokens - len(remains.learned.head_tokens))))
    assert digest in _command(remains, "forget", digest)
    content = remains.content()
    assert remains.learned.traces(content) == (0, 0, 0)
    assert remains.other.traces(content) == before
    assert [head["digest"] for head in json.loads(_command(remains, "prefixes", "--json"))] == list(kept.values())


def _command(remains: Remains, name: str, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("litellm-exllamav3")), name, str(remains.proxy.config_path)]
    return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=300).stdout
