"""`python -m exllamav3_adapters.preflight`: checks models in a process of its own.

Reads a list of `EngineSettings` as JSON from standard input and writes a list of `Report` as JSON, in the same order.
What torch and exllamav3 print goes to standard error.
"""

from __future__ import annotations

import contextlib
import sys

import msgspec

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.preflight.read_machine import read_machine
from exllamav3_adapters.preflight.run import preflight


def main() -> None:
    models = msgspec.json.decode(sys.stdin.buffer.read(), type=list[EngineSettings])
    with contextlib.redirect_stdout(sys.stderr):
        reports = [preflight(settings, read_machine(settings)) for settings in models]
    sys.stdout.buffer.write(msgspec.json.encode(reports))


if __name__ == "__main__":
    main()
