"""How a proxy with our models starts, refuses to start, and ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from proxy_process import FAKE, Proxy, config, openai_client

REFUSE_SECONDS = 60.0
HEAD = "You are an agent that is stopped. " + "Rule: be kind. " * 60


@pytest.fixture
def new_proxy(tmp_path: Path) -> Iterator[Any]:
    """Makes proxies that are cleaned up after the test."""
    made: list[Proxy] = []

    def make(*arguments: Any) -> Proxy:
        made.append(Proxy(tmp_path, *arguments))
        return made[-1]

    yield make
    for proxy in made:
        proxy.clean_up()


def say(proxy: Proxy, model: str = "tiny") -> None:
    messages = [{"role": "system", "content": HEAD}, {"role": "user", "content": "say: ok"}]
    openai_client(proxy).chat.completions.create(model=model, messages=messages)  # type: ignore[arg-type]


def test_a_stopped_proxy_leaves_nothing_and_a_killed_one_no_engine(new_proxy: Any) -> None:
    capture = {"min_conversations": 2, "min_tokens": 64, "flush_seconds": 0.1}
    settings = config({"tiny": {**FAKE, "capture": capture}, "lazy": {**FAKE, "load": "lazy"}})
    pace = {"EXLLAMAV3_FAKE_SECONDS_PER_TOKEN": "0.01", "GRACEFUL_SHUTDOWN_TIMEOUT": "2"}
    proxy = new_proxy(settings, pace)
    proxy.start()
    assert proxy.stats("lazy")["state"] == "lazy"
    for _ in range(2):
        say(proxy)
    assert len(proxy.engines()) == 1
    say(proxy, model="lazy")
    assert proxy.stats("lazy")["state"] == "ready"
    assert len(proxy.engines()) == 2
    endless = threading.Thread(target=_read_until_it_breaks, args=(proxy,))
    endless.start()
    proxy.wait_until(lambda: proxy.stats("tiny")["requests_active"] == 1, 5, "the stream to begin")
    proxy.terminate()
    endless.join(5)
    assert not endless.is_alive()
    assert proxy.left_behind() == []

    proxy.start()
    proxy.wait_until(lambda: (proxy.stats("tiny")["replay"] or {}).get("state") == "done", 10, "the replay")
    assert proxy.stats("tiny")["engine"]["cache_tokens_reusable"] >= 768
    proxy.kill()
    proxy.wait_until(lambda: not proxy.engines(), 5, "the engine to follow its proxy")


def _read_until_it_breaks(proxy: Proxy) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"say: {'x' * 4000}"}], "stream": True}
    try:
        httpx.post(f"{proxy.base_url}/v1/chat/completions", json=body, headers=proxy.headers, timeout=60)
    except httpx.HTTPError:
        pass


@pytest.mark.full
@pytest.mark.timeout(300)
def test_more_than_one_worker_is_refused_with_what_to_do(new_proxy: Any) -> None:
    # LiteLLM kills workers that take longer than 5 s to import it, and starts them again, for ever.
    proxy = new_proxy(config({"tiny": FAKE}), {"NUM_WORKERS": "2"}, ["--timeout_worker_healthcheck", "120"])
    proxy.launch()
    proxy.wait_exit(4 * REFUSE_SECONDS)
    assert "NUM_WORKERS" in proxy.log
    assert "one worker" in proxy.log
    assert proxy.left_behind() == []


def test_a_bad_config_ends_the_start_with_all_its_faults(new_proxy: Any) -> None:
    model = {"engine": "fake", "model": {"model_dir": "demo", "max_sequence_length": 1}, "max_queue": -1}
    proxy = new_proxy(config({"tiny": model}))
    proxy.launch()
    assert proxy.wait_exit(REFUSE_SECONDS) != 0
    assert proxy.log.count("2 faults") == 1
    assert "max_seq_len" in proxy.log
    assert "max_queue" in proxy.log
    assert "Traceback" not in proxy.log
    assert proxy.left_behind() == []
