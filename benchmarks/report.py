"""Measured figures, both sides of each, as a table and as JSON."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.table import Table

Unit = Literal["ms", "s", "tokens/s"]
_PER_SECOND = {"ms": 1000.0, "s": 1.0, "tokens/s": 1.0}
_DECIMALS = {"ms": 1, "s": 2, "tokens/s": 1}


def p99(values: Sequence[float]) -> float:
    """The smallest sample that 99 % of the samples do not exceed."""
    return sorted(values)[-(-len(values) * 99 // 100) - 1]


Statistic = Literal["median", "p99", "max"]
_STATISTICS: dict[Statistic, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "p99": p99,
    "max": max,
}


@dataclass(frozen=True, slots=True)
class Side:
    """All samples of one side: seconds, or tokens a second."""

    name: str
    samples: list[float]

    def value(self, statistic: Statistic) -> float:
        return _STATISTICS[statistic](self.samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """`rule` says in words how `value` follows from the other side. In the samples' unit: seconds or tokens/s."""

    rule: str
    value: float
    at_least: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One statistic of what is measured, beside the same statistic of what it is held against."""

    name: str
    unit: Unit
    statistic: Statistic
    measured: Side
    against: Side | None = None
    bound: Bound | None = None

    @property
    def met(self) -> bool | None:
        """None without a bound."""
        if self.bound is None:
            return None
        value = self.measured.value(self.statistic)
        return value >= self.bound.value if self.bound.at_least else value <= self.bound.value

    def as_json(self) -> dict[str, Any]:
        bound = self.bound
        return {
            "name": self.name,
            "unit": "tokens/s" if self.unit == "tokens/s" else "s",
            "statistic": self.statistic,
            "measured": self._side_as_json(self.measured),
            "against": self._side_as_json(self.against) if self.against else None,
            "bound": {"rule": bound.rule, "value": bound.value, "at_least": bound.at_least} if bound else None,
            "met": self.met,
        }

    def _side_as_json(self, side: Side) -> dict[str, Any]:
        return {"name": side.name, "value": side.value(self.statistic), "samples": list(side.samples)}

    def shown(self, seconds: float) -> str:
        return f"{seconds * _PER_SECOND[self.unit]:.{_DECIMALS[self.unit]}f} {self.unit}"

    def shown_side(self, side: Side) -> str:
        return f"{side.name}: [bold]{self.shown(side.value(self.statistic))}[/] ({len(side.samples)})"


@dataclass(slots=True)
class Report:
    """The figures of one run, and how busy the machine was meanwhile."""

    title: str = "Serving: measured, and what it is held against (number of samples)"
    figures: list[Figure] = field(default_factory=list)
    load_averages: dict[str, float] = field(default_factory=dict)
    """Of the last minute, by when it was read."""

    def add(self, name: str, figures: Sequence[Figure]) -> None:
        """What was measured under this name, just now."""
        self.figures += figures
        self.note_load(f"after {name}")

    def note_load(self, when: str) -> None:
        self.load_averages[when] = round(os.getloadavg()[0], 2)

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.met is False]

    def table(self) -> Table:
        table = Table(title=self.title, show_lines=True)
        for heading in ("figure", "statistic", "measured", "against", "bound", ""):
            table.add_column(heading)
        for figure in self.figures:
            against, bound = figure.against, figure.bound
            table.add_row(
                figure.name,
                figure.statistic,
                figure.shown_side(figure.measured),
                figure.shown_side(against) if against else "",
                f"{'≥' if bound.at_least else '≤'} {figure.shown(bound.value)}\n{bound.rule}" if bound else "",
                {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[figure.met],
            )
        return table

    def as_json(self) -> dict[str, Any]:
        return {
            "cores": os.cpu_count(),
            "load_averages": self.load_averages,
            "figures": [figure.as_json() for figure in self.figures],
        }
