"""How the process of each engine is started: what must be set before its libraries are imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessOptions:
    """`environment` yields to what the user's own environment says."""

    niceness: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

PROCESS_OPTIONS: Mapping[str, ProcessOptions] = {
    # Threads that spin while they wait take the cores from the proxy; with a lower priority as well, the latency of
    # other providers beside a prefill stays at 20 ms instead of 48.
    "cpu": ProcessOptions(niceness=15, environment={"OMP_WAIT_POLICY": "PASSIVE", **_OFFLINE}),
    "cuda": ProcessOptions(environment=_OFFLINE),
    "fake": ProcessOptions(environment={"EXLLAMAV3_FAKE_CRASH_EXITS": "1"}),
}
