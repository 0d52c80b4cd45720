"""Parts for the runner's tests."""

from __future__ import annotations

import subprocess
import sys
import time

from gpu_check.check import Check, Figures, PartFailed


def count(check: Check) -> Figures:
    """How often it has run in this state folder."""
    path = check.state / "count"
    number = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(number))
    check.say(f"run {number}")
    return {"runs": number, "seconds": check.seconds}


def fail(check: Check) -> Figures:
    raise PartFailed("a page came back wrong")


def crash(check: Check) -> Figures:
    sys.stderr.write("Fatal: illegal access\n")
    sys.stderr.flush()
    raise SystemExit(3)


def hang(check: Check) -> Figures:
    """With a process of its own, as a build or an engine has."""
    child = subprocess.Popen(["sleep", "60"])
    (check.state / "child").write_text(str(child.pid))
    check.say("waiting")
    time.sleep(60)
    return {}
