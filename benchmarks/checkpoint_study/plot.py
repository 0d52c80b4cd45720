"""Recomputed cost against slots, a panel a workload and a line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from checkpoint_study.candidates import DEFAULT, FORESIGHT, NO_LIMIT
from checkpoint_study.study import SLOTS, Outcome

mpl.use("Agg")

_PANEL_INCHES = (4.4, 3.0)
_BOUNDS = {FORESIGHT: "--", NO_LIMIT: ":"}
"""Drawn in black."""


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """A row for each placement, a column for each number of users. What no order can reach is dashed or dotted."""
    plotted = [outcome for outcome in outcomes if outcome.quick]
    placements = list(dict.fromkeys(outcome.placement for outcome in plotted))
    users = sorted({outcome.users for outcome in plotted})
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(users), height * len(placements) + 0.5), layout="constrained")
    axes = figure.subplots(len(placements), len(users), squeeze=False)
    for row, placement in enumerate(placements):
        for column, count in enumerate(users):
            panel = axes[row][column]
            _panel(panel, [o for o in plotted if (o.placement, o.users) == (placement, count)])
            panel.set_title(f"{count} users, checkpoints at\n{placement}", fontsize=9)
            if column == 0:
                panel.set_ylabel("recomputed prefill cost, %")
            if row == len(placements) - 1:
                panel.set_xlabel("checkpoint slots")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=90)


def _panel(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    for policy in dict.fromkeys(outcome.policy for outcome in outcomes):
        line = [outcome for outcome in outcomes if outcome.policy == policy]
        axes.plot(
            [str(outcome.slots) for outcome in line],
            [outcome.recomputed_cost.value for outcome in line],
            label=policy,
            linestyle=_BOUNDS.get(policy, "-"),
            color="black" if policy in _BOUNDS else None,
            linewidth=2.4 if policy == DEFAULT else 1.2,
            marker="o" if policy == DEFAULT else None,
        )
    assert {outcome.slots for outcome in outcomes} == set(SLOTS)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
