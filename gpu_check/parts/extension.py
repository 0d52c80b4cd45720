"""exllamav3's extension, built for this card alone and timed apart."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from gpu_check.check import Check, Figures, PartFailed, expect

NAME: Final = "exllamav3_ext"
_LOOK_SECONDS: Final = 2.0
_LAST_LINES: Final = 25
_IMPORT: Final = "import exllamav3, exllamav3.ext as e; print(e.exllamav3_ext.__file__)"


def build_extension(check: Check) -> Figures:
    """What an earlier run compiled is kept; the rest is compiled now."""
    folder = extensions_folder(check.state) / NAME
    # A build that was ended leaves it behind, and torch would wait for it for ever.
    (folder / "lock").unlink(missing_ok=True)
    kept, began = count_objects(folder), time.monotonic()
    log = check.state / "extension.log"
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "-c", _IMPORT], stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            check.say(f"{count_objects(folder)} objects compiled")
            time.sleep(_LOOK_SECONDS)
    seconds = time.monotonic() - began
    lines = log.read_text(errors="replace").strip().splitlines()
    if process.returncode != 0:
        raise PartFailed("the extension does not build: " + "\n".join(lines[-_LAST_LINES:]))
    expect(bool(lines) and Path(lines[-1]).is_file(), f"no file of the extension is named: {lines[-3:]}")
    return {
        "build_seconds": round(seconds, 1),
        "objects": count_objects(folder),
        "objects_of_an_earlier_run": kept,
        "mebibytes": round(Path(lines[-1]).stat().st_size / 2**20, 1),
        "import_seconds": round(_import_seconds(), 1),
    }


def extensions_folder(state: Path) -> Path:
    """torch's `TORCH_EXTENSIONS_DIR`: the user's own build is left alone."""
    return state / "extensions"


def count_objects(folder: Path) -> int:
    return len(list(folder.glob("*.o")))


def _import_seconds() -> float:
    """Of what is built."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", _IMPORT], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
