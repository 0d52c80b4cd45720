"""A real `litellm --config` process for the end-to-end tests, and what they ask of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import yaml

READY_SECONDS = 60.0
STOP_SECONDS = 20.0

MOCK_ANSWER = "hello from the mock"
FAKE = {"engine": "fake", "model": {"model_dir": "demo", "max_seq_len": 8192}}


def config(models: Mapping[str, Any], **exllamav3_settings: Any) -> dict[str, Any]:
    """A proxy config with every model of ours under its own key as alias, and a mock provider."""
    ours = [{"model_name": key, "litellm_params": {"model": f"exllamav3/{key}"}} for key in models]
    mock = {"model": "openai/mock", "api_key": "unused", "mock_response": MOCK_ANSWER}
    return {
        "model_list": [*ours, {"model_name": "mock", "litellm_params": mock}],
        "litellm_settings": {
            "custom_provider_map": [{"provider": "exllamav3", "custom_handler": "litellm_exllamav3.provider.handler"}],
            "callbacks": ["litellm_exllamav3.hooks.capture"],
        },
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY", "cancel_on_disconnect": True},
        "exllamav3_settings": {"models": dict(models), **exllamav3_settings},
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Proxy:
    """One proxy, started in its own process group so that it can be cleaned up whole."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.config_path = folder / "litellm_config.yaml"
        self.log_path = folder / "proxy.log"
        self.master_key = f"sk-{secrets.token_hex(16)}"
        self.base_url = f"http://127.0.0.1:{free_port()}"
        self.config_path.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
        self._environment = dict(environment or {})
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.master_key}"}

    def launch(self) -> None:
        environment = {
            **os.environ,
            "LITELLM_MASTER_KEY": self.master_key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_WORKER_STARTUP_HOOKS": "stats_route:add_route",
            "PYTHONPATH": str(Path(__file__).parent),
            **self._environment,
        }
        port = self.base_url.rpartition(":")[2]
        command = [str(Path(sys.executable).with_name("litellm")), "--config", str(self.config_path)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", port, "--telemetry", "False", *self._arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def start(self) -> None:
        self.launch()
        self.wait_until(self._answers, READY_SECONDS, "the proxy to answer")

    def warm_up(self) -> None:
        """LiteLLM's first request of a process takes up to a second whatever it is, and no test is about that."""
        body = {"model": "mock", "messages": [{"role": "user", "content": "hi"}]}
        url = f"{self.base_url}/v1/chat/completions"
        httpx.post(url, json=body, headers=self.headers, timeout=30).raise_for_status()

    def wait_exit(self, seconds: float = STOP_SECONDS) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def terminate(self) -> int:
        """SIGTERM to the proxy alone, as a service manager sends it. Returns its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait_exit()

    def kill(self) -> None:
        """SIGKILL to the proxy alone."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait_exit()

    def clean_up(self) -> None:
        """Ends whatever is left of it."""
        if self._process is None:
            return
        for engine in self.engines():
            with contextlib.suppress(psutil.Error):
                engine.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def engines(self) -> list[psutil.Process]:
        """The processes of the proxy's engines, also when the proxy itself is gone."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if "exllamav3_adapters.host" in command and command[command.index("--parent") + 1] == str(self.pid):
                    found.append(process)
        return found

    def left_behind(self) -> list[psutil.Process]:
        """Every process that the proxy started, its engines and what else is in its session, that still runs."""
        found = self.engines()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stats(self, model: str = "") -> dict[str, Any]:
        """What the plugin counts; of one model where it is named."""
        found = self.get("/test/stats")
        stats: dict[str, Any] = found["models"][model] if model else found
        return stats

    def get(self, path: str) -> Any:
        answer = httpx.get(f"{self.base_url}{path}", headers=self.headers, timeout=10)
        answer.raise_for_status()
        return answer.json()

    def counter(self, model: str, name: str) -> float:
        """One of the engine's own counters, 0 where it has not counted yet."""
        return float(self.stats(model)["engine"]["counters"].get(name, 0))

    def wait_until(self, holds: Callable[[], bool], seconds: float, what: str) -> float:
        """Polls until it holds. Returns the seconds that took; fails with the proxy's log after `seconds`."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if holds():
                return time.monotonic() - began
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds:g} s for {what}\n{self.log[-4000:]}")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/health/readiness", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False


def openai_client(proxy: Proxy) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy.base_url}/v1", api_key=proxy.master_key, max_retries=0, timeout=30)
