"""The cost model of the 2014 study: section 5 and the last row of Table 2, by the product's formulas."""

from __future__ import annotations

from deploy.reproduction.experiment import (
    Experiment,
    ExperimentKind,
    FigureNumbers,
    PaperClaim,
    PlotAxes,
    PlotLine,
    RunSetting,
    Study,
)
from deploy.reproduction.memcached_figures import gain_apart
from manager.control.savings import CostModel

THROUGHPUT = {10: 0.754, 30: 0.47, 50: 0.30, 70: 0.18, 90: 0.20}
"""Geometric means of SPEC's throughput by memcached's load in percent: Table 2, and 75.4 % in section 5.1."""
PUBLISHED = {10: 52.0, 30: 29.0, 50: 18.0, 70: 11.0, 90: 18.0}
PRIMARY, EXTRA = 0.5, 0.3
"""Section 5.2: load of the primary workload, and servers that memcached would need apart, of the cluster."""


def from_their_throughput(_setting: RunSetting) -> FigureNumbers:
    """The row from the study's own throughput, and section 5.2."""
    model = CostModel()
    gains = {load: 100 * gain_apart(model, load / 100, batch) for load, batch in THROUGHPUT.items()}
    values = {f"gain_{load}": gain for load, gain in gains.items()}
    values["primary"] = 100 * gain_apart(model, PRIMARY, EXTRA)
    return FigureNumbers((PlotLine("by our model", tuple((float(x), y) for x, y in gains.items())),), values)


EXPERIMENTS = (
    Experiment(
        "r-table2-formula",
        Study.RECONCILING,
        "Table 2, last row, and section 5.2",
        "The cost model gives the study's gains from the study's throughput.",
        ExperimentKind.ARITHMETIC,
        "The product's cost model with its defaults, on the throughput that the study measured.",
        from_their_throughput,
        PlotAxes("load, % of peak", "gain in throughput per TCO-$, %"),
        (PlotLine("published", tuple((float(x), y) for x, y in PUBLISHED.items())),),
        (
            *(
                PaperClaim(
                    f"gain at {load} % load",
                    f"gain_{load}",
                    theirs,
                    "Table 2",
                    theirs - 1.5,
                    theirs + 1.5,
                    "%",
                    below="Their throughput is printed in whole percent, and the gain moves by a point with each.",
                    above="Their throughput is printed in whole percent, and the gain moves by a point with each.",
                )
                for load, theirs in PUBLISHED.items()
            ),
            PaperClaim(
                "gain beside a primary workload on half of the cores",
                "primary",
                17.0,
                "5.2",
                16,
                18,
                "%",
                below="The model's constants differ from theirs.",
                above="The model's constants differ from theirs.",
            ),
        ),
        quick_s=0.1,
        full_s=0.1,
    ),
)
