"""How much of a busy machine a process leaves to others."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")


def lower_priority(niceness: int) -> None:
    """Makes this process, and with it the session that it leads, nicer by `niceness` (0 to 19).

    Where Linux groups tasks by session (`sched_autogroup_enabled`), a process's niceness counts only inside its
    session, and whole sessions share the machine equally. An engine has a session of its own, so without the second
    step it would take half of the machine from the gateway whatever its niceness.
    """
    os.nice(niceness)
    with contextlib.suppress(OSError):  # another system, or grouping that is off
        AUTOGROUP.write_text(str(niceness))
