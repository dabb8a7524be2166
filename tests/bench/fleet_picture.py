"""Cost per host and interval against hosts, as a picture, from results of ``tests.bench.fleet``. Needs matplotlib.

    python -m tests.bench.fleet_picture fleet-10.json fleet-60.json fleet-300.json fleet-1000.json --png cost.png

From two sizes of fleet on it also says what a fleet costs as such, what each host adds (least squares of CPU time by
hosts), and from these what 10,000 hosts would take: an estimate. Let few hosts report as many do with ``--small-fleet
0``, else they report all in each interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BARS_MS = {"manager": 1.5, "postgres": 0.7}
LARGE_FLEET = 10_000
_STYLES = {"manager": ("#0072b2", "manager"), "postgres": ("#d55e00", "PostgreSQL")}


def cost_ms(result: Mapping[str, Any], part: str) -> float:
    """CPU milliseconds of ``manager`` or ``postgres`` per host and interval."""
    return float(1000 * result[f"{part}_share"] * result["interval_s"] / result["hosts"])


@dataclass(frozen=True, slots=True)
class Line:
    """What a part costs: shares of a core, of the fleet as such and of each host. ``interval_s`` is that of all."""

    fixed_share: float
    host_share: float
    interval_s: float

    @classmethod
    def through(cls, results: Sequence[Mapping[str, Any]], part: str) -> Line:
        """Of results with the same interval and at least two numbers of hosts; raises ValueError for others."""
        intervals_s = {float(result["interval_s"]) for result in results}
        if len(intervals_s) != 1:
            raise ValueError(f"results with one interval can be compared, these have {sorted(intervals_s)} s")
        hosts = [float(result["hosts"]) for result in results]
        try:
            slope, fixed = statistics.linear_regression(hosts, [float(result[f"{part}_share"]) for result in results])
        except statistics.StatisticsError as error:
            raise ValueError(f"one size of fleet does not say what a host adds: {error}") from error
        return cls(fixed, slope, *intervals_s)

    def share(self, hosts: int) -> float:
        """Of a core, with so many hosts."""
        return self.fixed_share + self.host_share * hosts

    def cost_ms(self, hosts: int) -> float:
        """CPU milliseconds per host and interval."""
        return 1000 * self.share(hosts) * self.interval_s / hosts


def draw(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """In the format of the file's ending. Raises OSError when it cannot be written."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("agg")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(results, key=lambda result: float(result["hosts"]))
    hosts = [result["hosts"] for result in ordered]
    for part, (colour, label) in _STYLES.items():
        axes.plot(hosts, [cost_ms(result, part) for result in ordered], "o-", color=colour, label=label)
        axes.axhline(BARS_MS[part], color=colour, linestyle="--", label=f"bar: {BARS_MS[part]} ms")
    axes.set_xscale("log")
    axes.set_xticks(hosts, [f"{count}" for count in hosts])
    axes.minorticks_off()
    axes.set_xlabel("hosts")
    axes.set_ylabel("CPU ms per host and interval")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(file, dpi=100)


def show(results: Sequence[Mapping[str, Any]]) -> None:
    """Print what was measured, and what follows for a large fleet."""
    table = Table("hosts", "manager, ms", "PostgreSQL, ms", "agents, ms", "late reports", "busy", title="per interval")
    for result in sorted(results, key=lambda result: float(result["hosts"])):
        costs = [f"{cost_ms(result, part):.2f}" for part in ("manager", "postgres", "agents")]
        late = f"{result['late_reports']} of {result['told_ms']['count']}"
        table.add_row(f"{result['hosts']}", *costs, late, f"{result['busy_share']:.0%}")
    console = Console(width=120)
    console.print(table)
    if len({result["hosts"] for result in results}) < 2:
        return
    table = Table("", "a fleet, % of a core", "each host, ms", f"{LARGE_FLEET:,} hosts, cores", title="calculated")
    for part, (_, label) in _STYLES.items():
        line = Line.through(results, part)
        each_ms = 1000 * line.host_share * line.interval_s
        table.add_row(label, f"{100 * line.fixed_share:.1f}", f"{each_ms:.2f}", f"{line.share(LARGE_FLEET):.1f}")
    console.print(table)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--png", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    results = [json.loads(file.read_text())["result"] for file in options.results]
    show(results)
    draw(results, options.png)


if __name__ == "__main__":
    main()
