"""`python -m exllamav3_adapters.preflight`: checks one model in a process of its own.

Reads `EngineSettings` as JSON from standard input and writes a `Report` as JSON. What torch and exllamav3 print goes to
standard error.
"""

from __future__ import annotations

import contextlib
import sys

import msgspec

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.read_machine import read_machine
from exllamav3_adapters.preflight.run import preflight


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSettings)
    with contextlib.redirect_stdout(sys.stderr):
        report = preflight(settings, read_machine(settings))
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
