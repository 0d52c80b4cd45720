"""Signals and shutdown, in processes of their own: real handlers, real loops, a real uvicorn."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import types

import pytest

from litellm_exllamav3.lifecycle import Lifecycle

PRELUDE = """
import asyncio, os, signal, sys, time, types
from litellm_exllamav3.lifecycle import Lifecycle

def say(word):
    os.write(1, word.encode() + b"\\n")

async def stop():
    await asyncio.sleep(0.05)
    say("stopped")

def lifecycle(**options):
    return Lifecycle(asyncio.get_running_loop(), on_signal=lambda: say("flushed"), stop=stop, **options)

def run(main):
    if LOOP == "uvloop":
        import uvloop
        uvloop.run(main())
    else:
        asyncio.run(main())
"""


async def nothing() -> None: ...


def output(script: str, loop: str = "asyncio") -> tuple[list[str], int]:
    """What the script says, one word a line, and how it ended (negative: by that signal)."""
    source = f"LOOP = {loop!r}\n{PRELUDE}\n{textwrap.dedent(script)}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.split(), done.returncode


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_our_handler_runs_first_and_the_one_that_was_there_still_runs(loop):
    words, status = output(
        """
        async def main():
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()
            signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(lambda: (say("served"), ended.set())))
            lifecycle().chain_signals()
            os.kill(os.getpid(), signal.SIGTERM)
            await ended.wait()
        run(main)
        """,
        loop,
    )
    assert (words, status) == (["flushed", "served"], 0)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("installed", ["before", "after"])
def test_a_handler_of_the_loop_itself_still_runs(loop, installed):
    words, status = output(
        f"""
        async def main():
            ended = asyncio.Event()
            handle = lambda: (say("served"), ended.set())
            if {installed == "before"}:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, handle)
            lifecycle(check_seconds=0.01).chain_signals()
            if {installed == "after"}:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, handle)
                await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
            await ended.wait()
            await asyncio.sleep(0.05)
        run(main)
        """,
        loop,
    )
    assert (sorted(words), status) == (["flushed", "served"], 0)


def test_a_handler_that_is_installed_later_is_chained_and_may_put_ours_back():
    words, _ = output(
        """
        async def main():
            lifecycle(check_seconds=0.01).chain_signals()
            ours = signal.signal(signal.SIGTERM, lambda *_: say("later"))
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            signal.signal(signal.SIGTERM, ours)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.5)
        run(main)
        """
    )
    assert words.count("flushed") >= 2
    assert words.count("later") == 1


def test_where_nobody_handles_the_signal_we_stop_in_order_and_then_it_ends_the_process():
    words, status = output(
        """
        async def main():
            lifecycle().chain_signals()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(5)
        run(main)
        """
    )
    assert (words, status) == (["flushed", "stopped"], -signal.SIGTERM)


def test_a_second_signal_ends_the_process_without_waiting():
    words, status = output(
        """
        async def stop():
            say("stopping")
            await asyncio.sleep(10)
        async def main():
            lifecycle().chain_signals()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(10)
        run(main)
        """
    )
    assert (words[:2], status) == (["flushed", "stopping"], -signal.SIGTERM)


def test_an_ignored_signal_stays_ignored():
    words, status = output(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        async def main():
            lifecycle().chain_signals()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)
            say("alive")
        run(main)
        """
    )
    assert (words, status) == (["flushed", "alive"], 0)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_under_uvicorn_the_flush_comes_at_the_signal_and_the_stop_in_the_shutdown(loop, sig):
    words, status = output(
        f"""
        import contextlib, uvicorn
        server_module = types.ModuleType("server_module")

        async def proxy_shutdown_event(worker_heartbeat=None):
            say("shutdown")
        server_module.proxy_shutdown_event = proxy_shutdown_event

        async def app(scope, receive, send):
            while True:
                message = await receive()
                if message["type"] == "lifespan.startup":
                    life = lifecycle()
                    life.chain_signals()
                    life.wrap_shutdown(server_module)
                    life.wrap_shutdown(server_module)
                    await send({{"type": "lifespan.startup.complete"}})
                    asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), {int(sig)})
                else:
                    await server_module.proxy_shutdown_event(worker_heartbeat=None)
                    await send({{"type": "lifespan.shutdown.complete"}})
                    return

        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.run(app, port=0, log_level="critical", loop=LOOP)
        """,
        loop,
    )
    assert words == ["flushed", "stopped", "shutdown"]
    assert status == (-signal.SIGTERM if sig == signal.SIGTERM else 0)


async def test_a_stop_that_fails_does_not_keep_the_server_from_its_own_shutdown(caplog):
    module = types.ModuleType("server")
    seen: list[object] = []

    async def shutdown(*, heartbeat: object) -> None:
        seen.append(heartbeat)

    async def stop() -> None:
        raise OSError("disk full")

    module.proxy_shutdown_event = shutdown
    lifecycle = Lifecycle(asyncio.get_running_loop(), on_signal=lambda: None, stop=stop)
    assert lifecycle.wrap_shutdown(module)
    await module.proxy_shutdown_event(heartbeat=7)
    assert seen == [7]
    assert "disk full" in caplog.text


async def test_a_server_without_that_function_is_served_all_the_same(caplog):
    lifecycle = Lifecycle(asyncio.get_running_loop(), on_signal=lambda: None, stop=nothing)
    assert not lifecycle.wrap_shutdown(types.ModuleType("other_server"))
    assert "other_server has no proxy_shutdown_event" in caplog.text


async def test_outside_the_main_thread_no_signal_is_touched():
    before = signal.getsignal(signal.SIGTERM)
    lifecycle = Lifecycle(asyncio.get_running_loop(), on_signal=lambda: None, stop=nothing)
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(lifecycle.chain_signals()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert results == [False]
    assert signal.getsignal(signal.SIGTERM) is before


async def test_unchaining_puts_back_what_was_there():
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT)}
    lifecycle = Lifecycle(asyncio.get_running_loop(), on_signal=lambda: None, stop=nothing)
    assert lifecycle.chain_signals()
    assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    lifecycle.unchain_signals()
    assert {sig: signal.getsignal(sig) for sig in before} == before
