"""What is wrong with a config, all of it in one error."""

from __future__ import annotations

from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the file: `("exllamav3_settings", "models", "smollm2", "engine")`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, where, and what to do about it."""

    path: Path
    message: str
    line: int | None = None
    """In the file, counted from 1; None where the fault is that something is missing altogether."""

    def __str__(self) -> str:
        where = dotted(self.path)
        if self.line is not None:
            where = f"line {self.line}: {where}" if where else f"line {self.line}"
        return f"{where}: {self.message}" if where else self.message


class SettingsError(ValueError):
    """The config cannot be used. `str(error)` lists every fault, one a line; no secret is in it."""

    def __init__(self, config_path: str, faults: tuple[Fault, ...]) -> None:
        assert faults
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__("\n".join([f"{config_path}: {count}", *(f"- {fault}" for fault in faults)]))
        self.config_path = config_path
        self.faults = faults


def dotted(path: Path) -> str:
    """`("a", "b", 0)` as `a.b[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
