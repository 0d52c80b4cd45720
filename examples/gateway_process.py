"""A `litellm --config` process of one's own: start, wait until it serves, stop. Used by the demo and the benchmarks."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

READY_SECONDS = 180.0
STOP_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(kw_only=True)
class GatewayProcess:
    """The proxy on a free port of this machine, with a generated master key and its log in a file."""

    config: Path
    log_path: Path
    master_key: str = field(default_factory=lambda: f"sk-{secrets.token_hex(16)}")
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once the proxy answers. Raises RuntimeError with the end of the log where it does not."""
        litellm = Path(sys.executable).with_name("litellm")
        environment = os.environ | {
            "LITELLM_MASTER_KEY": self.master_key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the map that ships with LiteLLM, no look-up on the internet
        }
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [litellm, "--config", self.config, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the proxy ended with status {self.process.returncode}:\n{self.log_tail()}")
            try:
                if httpx.get(f"{self.base_url}/health/liveliness", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"the proxy was not ready after {READY_SECONDS:.0f} s:\n{self.log_tail()}")

    def wait_for_log(self, text: str, seconds: float) -> str:
        """The first line of this run's log that contains `text`. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.log_path.read_text(errors="replace").splitlines():
                if text in line:
                    return line
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"the proxy ended with status {self.process.returncode}:\n{self.log_tail()}")
            time.sleep(0.1)
        raise TimeoutError(f"no line with {text!r} in the proxy's log after {seconds:.0f} s:\n{self.log_tail()}")

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def running_gateway(config: Path, log_path: Path) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(config=config, log_path=log_path)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
