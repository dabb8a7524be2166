"""Cost per host and interval against hosts, as a picture, from results of ``tests.bench.fleet``. Needs matplotlib.

python -m tests.bench.fleet_picture fleet-10.json fleet-100.json ... --png cost.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

BARS_MS = {"manager": 1.5, "postgres": 0.7}
_STYLES = {"manager": ("#0072b2", "manager"), "postgres": ("#d55e00", "PostgreSQL")}


def cost_ms(result: Mapping[str, Any], part: str) -> float:
    """CPU milliseconds of ``manager`` or ``postgres`` per host and interval."""
    return float(1000 * result[f"{part}_share"] * result["interval_s"] / result["hosts"])


def draw(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """In the format of the file's ending. Raises OSError when it cannot be written."""
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


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--png", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    draw([json.loads(file.read_text())["result"] for file in options.results], options.png)


if __name__ == "__main__":
    main()
