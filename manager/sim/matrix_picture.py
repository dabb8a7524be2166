"""The matrix as a picture. Needs matplotlib, which is not installed with Equipoise itself."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from manager.sim.matrix import AUTO, PRIORITY, Table, totals
from manager.sim.oracle import ORACLE

# Told apart by everybody: Okabe and Ito's, with grey and black for the two that are no use and out of reach.
_COLOURS = {
    "equal": "0.6",
    PRIORITY: "#0072b2",
    "fair": "#e69f00",
    "fair:published": "#f0e442",
    "isolation": "#56b4e9",
    "parties": "#cc79a7",
    "heracles": "#d55e00",
    AUTO: "#009e73",
    ORACLE: "black",
}
_OTHERS = ("0.4", "0.75")


def draw_matrix(table: Table, file: Path) -> None:
    """Write a PNG: violated share and batch of each policy, and its violated share in all scenarios.

    Raises OSError when that fails.
    """
    mpl.use("agg")
    figure = Figure(figsize=(12, 5), layout="constrained")
    mean, each = figure.subplots(1, 2)
    for place, total in enumerate(totals(table)):
        colour = _COLOURS.get(total.policy, _OTHERS[place % len(_OTHERS)])
        batch = 100 * (total.batch if total.batch is not None else 1.0)
        mean.scatter(batch, 100 * total.violated_share, color=colour, s=60)
        mean.annotate(total.policy, (batch, 100 * total.violated_share), xytext=(5, 5), textcoords="offset points")
        shares = sorted(100 * row[total.policy].violated_share for row in table.values())
        style = "--" if total.policy == PRIORITY else "-"
        each.step(range(1, len(shares) + 1), shares, where="mid", color=colour, linestyle=style, label=total.policy)
    mean.set_xlabel("batch progress, % of that under priority")
    mean.set_ylabel("SLA violated, % of the time (mean)")
    mean.set_yscale("symlog", linthresh=1)
    each.set_xlabel("scenarios, by violated share under each policy")
    each.set_ylabel("SLA violated, % of the time")
    each.set_yscale("symlog", linthresh=1)
    each.legend(fontsize="small")
    figure.suptitle(f"Simulated: {len(table)} scenarios")
    figure.savefig(file, dpi=100)
