"""The colocation map of two applications as a picture. Needs matplotlib, which Equipoise does not install itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from manager.control.pair_map import PairVerdict
from manager.model.units import per_second

_COLOURS = {
    PairVerdict.BOTH: "#009e73",
    PairVerdict.FIRST: "#56b4e9",
    PairVerdict.SECOND: "#e69f00",
    PairVerdict.NONE: "#d55e00",
    PairVerdict.UNKNOWN: "#bbbbbb",
}


def draw_pairs(
    known: Mapping[tuple[int, int], PairVerdict],
    names: tuple[str, str],
    rates_rps: tuple[Sequence[float], Sequence[float]],
    file: Path,
) -> None:
    """A square for each pair of loads, coloured and hatched by who meets the SLA. Raises OSError."""
    mpl.use("agg")
    first, second = names
    labels = {
        PairVerdict.BOTH: ("both", ""),
        PairVerdict.FIRST: (f"only {first}", "//"),
        PairVerdict.SECOND: (f"only {second}", "\\\\"),
        PairVerdict.NONE: ("none", "xx"),
        PairVerdict.UNKNOWN: ("not judged", ".."),
    }
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    for (row, column), verdict in sorted(known.items()):
        colour, hatch = _COLOURS[verdict], labels[verdict][1]
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white", hatch=hatch))
    for axis, rates, name in ((axes.yaxis, rates_rps[0], first), (axes.xaxis, rates_rps[1], second)):
        axis.set_ticks(range(1, len(rates) + 1), [per_second(rate_rps).split()[0] for rate_rps in rates])
        axis.set_label_text(f"{name}, req/s")
    axes.set_xlim(0.5, len(rates_rps[1]) + 0.5)
    axes.set_ylim(0.5, len(rates_rps[0]) + 0.5)
    shown = [verdict for verdict in PairVerdict if verdict in known.values()]
    patches = [
        Patch(facecolor=_COLOURS[verdict], edgecolor="white", hatch=labels[verdict][1], label=labels[verdict][0])
        for verdict in shown
    ]
    if patches:
        figure.legend(handles=patches, title="meets the SLA", loc="outside right upper")
    axes.set_title(f"{first} and {second}")
    figure.savefig(file, dpi=100)
