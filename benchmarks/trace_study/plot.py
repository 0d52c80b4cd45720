"""Hit rate against cache size, a panel a workload and a line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trace_study.candidates import clairvoyant, default_policy
from trace_study.study import Outcome

mpl.use("Agg")

_PANEL_INCHES = (4.4, 2.9)
_COLUMNS = 3


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """For each workload token hit rates above, those of conversations' first requests below. The bound is dashed."""
    plotted = [outcome for outcome in outcomes if outcome.plotted]
    workloads = list(dict.fromkeys(outcome.workload for outcome in plotted))
    columns, rows = min(_COLUMNS, len(workloads)), 2 * -(-len(workloads) // _COLUMNS)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, workload in enumerate(workloads):
        row, column = 2 * (number // _COLUMNS), number % _COLUMNS
        of_workload = [outcome for outcome in plotted if outcome.workload == workload]
        above, below = axes[row][column], axes[row + 1][column]
        _panel(above, of_workload, first=False)
        _panel(below, of_workload, first=True)
        above.set_title(f"{workload}, {of_workload[0].requests:,} requests", fontsize=10)
        if column == 0:
            above.set_ylabel("prompt tokens\nfrom the cache, %")
            below.set_ylabel("first requests: of what\ncould be served, %")
    for number in range(len(workloads), columns * rows // 2):
        for row in (0, 1):
            axes[2 * (number // _COLUMNS) + row][number % _COLUMNS].set_axis_off()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=90)


def _panel(axes: Axes, outcomes: Sequence[Outcome], *, first: bool) -> None:
    bound, default = clairvoyant().name, default_policy().name
    for policy in dict.fromkeys(outcome.policy for outcome in outcomes):
        line = [outcome for outcome in outcomes if outcome.policy == policy]
        estimates = [o.first_request_hit_rate if first else o.token_hit_rate for o in line]
        axes.plot(
            [outcome.size for outcome in line],
            [estimate.value for estimate in estimates],
            label=policy,
            linestyle="--" if policy == bound else "-",
            color="black" if policy == bound else None,
            linewidth=2.4 if policy == default else 1.2,
            marker="o" if policy == default else None,
        )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
