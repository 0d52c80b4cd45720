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

_PANEL_INCHES = (4.6, 3.4)


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Token hit rates above, those of conversations' first requests below. The bound is dashed."""
    plotted = [outcome for outcome in outcomes if outcome.plotted]
    workloads = list(dict.fromkeys(outcome.workload for outcome in plotted))
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(workloads), 2 * height + 0.6), layout="constrained")
    axes = figure.subplots(2, len(workloads), squeeze=False)
    for column, workload in enumerate(workloads):
        of_workload = [outcome for outcome in plotted if outcome.workload == workload]
        _panel(axes[0][column], of_workload, first=False)
        _panel(axes[1][column], of_workload, first=True)
        axes[0][column].set_title(f"{workload}\n{of_workload[0].requests:,} requests", fontsize=10)
        axes[1][column].set_xlabel("cache")
    axes[0][0].set_ylabel("prompt tokens served from the cache, %")
    axes[1][0].set_ylabel("first requests: of what could be served, %")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, dpi=110)


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
