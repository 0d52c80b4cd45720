"""The child's side of the wire, spoken to directly."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from exllamav3_adapters import wire
from exllamav3_adapters.connection import Connection
from exllamav3_adapters.contract import EngineStats, GenerationParams, LoadProgress, Prompt
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import EngineError, LoadFailed
from exllamav3_adapters.event_stream import QueuedEventStream
from exllamav3_adapters.fake import FakeEngine
from exllamav3_adapters.host import EngineHost
from exllamav3_adapters.registry import ENGINES

SETTINGS = EngineSettings(model_key="fake", model=ModelOptions(model_dir="demo", chunk_size=256))
USERS_WORDS = "a text that no log may hold"
Parent = Connection[wire.ToParent]


class FaultyEngine(FakeEngine):
    """Raises what the contract does not name."""

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> QueuedEventStream:
        raise MemoryError(USERS_WORDS)

    def prefill(self, prompt: Prompt, *, pin: bool = False) -> QueuedEventStream:
        raise MemoryError(USERS_WORDS)

    def unpin(self, prompt: Prompt) -> Coroutine[Any, Any, None]:
        raise MemoryError(USERS_WORDS)

    async def stats(self) -> EngineStats:
        raise ValueError(USERS_WORDS)


class UnloadableEngine:
    @classmethod
    async def load(cls, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> FakeEngine:
        raise OSError("weights.bin is truncated")


@pytest.fixture
async def parent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parent]:
    """The parent's end of a host that runs here, with the engine class that the test names."""
    monkeypatch.setitem(ENGINES, "test", f"{__name__}:{request.param.__name__}")
    ours, theirs = socket.socketpair()
    connection = await Connection.open(ours, wire.decode_to_parent)
    child = await Connection.open(theirs, wire.decode_to_child)
    host = asyncio.create_task(EngineHost("test", child).serve())
    connection.send(wire.Load(SETTINGS))
    yield connection
    host.cancel()
    await asyncio.wait([host])
    await child.aclose()
    await connection.aclose()


async def receive(parent: Parent, kind: type[wire.ToParent]) -> wire.ToParent:
    while not isinstance(message := await asyncio.wait_for(parent.receive(), 5), kind):
        pass
    return message


@pytest.mark.parametrize("parent", [FaultyEngine], indirect=True)
async def test_an_error_that_nobody_foresaw_is_told_and_logged_by_its_type_alone(
    parent: Parent, caplog: pytest.LogCaptureFixture
) -> None:
    await receive(parent, wire.Loaded)
    with caplog.at_level(logging.DEBUG):
        parent.send(wire.GetStats(1))
        failure = await receive(parent, wire.Failure)
    assert isinstance(failure, wire.Failure)
    error = wire.unpack_error(failure.error)
    assert type(error) is EngineError
    assert "ValueError" in error.message
    assert "in stats" in caplog.text
    assert USERS_WORDS not in error.message + caplog.text


@pytest.mark.parametrize("parent", [FaultyEngine], indirect=True)
@pytest.mark.parametrize(
    "request_",
    [
        wire.Generate(1, Prompt(token_ids=(1,)), GenerationParams(), True),
        wire.Prefill(1, Prompt(token_ids=(1,)), False),
        wire.Unpin(1, Prompt(token_ids=(1,))),
    ],
    ids=["generate", "prefill", "a call"],
)
async def test_a_request_that_fails_before_it_waits_for_anything_is_answered(
    parent: Parent, request_: wire.Request
) -> None:
    await receive(parent, wire.Loaded)
    parent.send(request_)
    failure = await receive(parent, wire.Failure)
    assert isinstance(failure, wire.Failure)
    assert failure.id == 1
    assert "MemoryError" in wire.unpack_error(failure.error).message


@pytest.mark.parametrize("parent", [UnloadableEngine], indirect=True)
async def test_a_load_that_nobody_foresaw_failing_says_why(parent: Parent) -> None:
    failure = await receive(parent, wire.NotLoaded)
    assert isinstance(failure, wire.NotLoaded)
    error = wire.unpack_error(failure.error)
    assert type(error) is LoadFailed
    assert "OSError: weights.bin is truncated" in error.message


@pytest.mark.parametrize("parent", [FakeEngine], indirect=True)
async def test_a_cancel_for_what_has_ended_is_no_error(parent: Parent) -> None:
    await receive(parent, wire.Loaded)
    parent.send(wire.Cancel(99))
    parent.send(wire.Tokenize(1, "still here"))
    await receive(parent, wire.Reply)


async def spawn(**environment: str) -> tuple[subprocess.Popen[bytes], Parent]:
    ours, theirs = socket.socketpair()
    arguments = ["--fd", str(theirs.fileno()), "--parent", str(os.getpid()), "--engine", "fake"]
    process = subprocess.Popen(  # noqa: ASYNC220  it returns at once
        [sys.executable, "-m", "exllamav3_adapters.host", *arguments],
        pass_fds=(theirs.fileno(),),
        env=os.environ | environment,
    )
    theirs.close()
    parent = await Connection.open(ours, wire.decode_to_parent)
    parent.send(wire.Load(SETTINGS))
    return process, parent


async def test_a_socket_that_closes_ends_the_process_in_the_middle_of_a_prefill() -> None:
    process, parent = await spawn(EXLLAMAV3_FAKE_SECONDS_PER_PREFILL_PAGE="0.2")
    await receive(parent, wire.Loaded)
    parent.send(wire.Prefill(1, Prompt(token_ids=tuple(b"z" * 5000)), False))
    await receive(parent, wire.Events)
    await parent.aclose()
    assert await asyncio.to_thread(process.wait, 3) == 0


async def test_a_socket_that_closes_ends_the_process_in_the_middle_of_a_load() -> None:
    process, parent = await spawn(EXLLAMAV3_FAKE_LOAD_SECONDS="60")
    await receive(parent, wire.Loading)
    await parent.aclose()
    assert await asyncio.to_thread(process.wait, 3) == 1


def test_a_process_whose_parent_is_another_ends_at_once() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "exllamav3_adapters.host", "--fd", str(theirs.fileno()), "--parent", "1"]
    with ours, theirs:
        process = subprocess.run([*command, "--engine", "fake"], pass_fds=(theirs.fileno(),), timeout=10, check=False)
    assert process.returncode == 1
