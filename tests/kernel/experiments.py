"""Boots a guest with sched_ext, runs an experiment in it, prints what came of it and draws it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.lab.commands import LabError
from tests.kernel.machine import run_module
from tests.kernel.machines import MACHINES

Results = Sequence[dict[str, Any]]
MODULE = "tests.kernel.inside.warp.experiments"
NAMES = {
    "alone": "alone",
    "eevdf": "EEVDF",
    "eevdf-slice": "EEVDF, slice 0.1 ms",
    "bvt": "BVT, no warp",
    "bvt-warp": "BVT with warp",
}


def square_wave(results: Results) -> list[dict[str, Any]]:
    """Each result with its ratio to alone at the same load."""
    alone = {each["load_percent"]: each["p99_us"] for each in results if each["mode"] == "alone"}
    return [{**each, "p99_to_alone": round(each["p99_us"] / alone[each["load_percent"]], 3)} for each in results]


def two_services(results: Results) -> list[dict[str, Any]]:
    """Each pair of loads with who meets its bar: 5 times its p95 alone at a load of 10 %."""
    bar = {
        name: 5 * each[name]["p95_us"]
        for each in results
        for name in ("fast", "slow")
        if each["mode"] == "alone" and name in each
    }
    return [
        {**each, "meets": [name for name in ("fast", "slow") if name in each and each[name]["p95_us"] <= bar[name]]}
        for each in results
    ]


def draw_square_wave(results: Results, file: Path) -> None:
    """p99 against load, one line a mode."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for mode, name in NAMES.items():
        points = [(each["load_percent"], each["p99_us"] / 1000) for each in results if each["mode"] == mode]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel="load of the service, % of the CPU", ylabel="p99, ms", yscale="log")
    axes.set_title("A service that wakes up every 1 ms, beside 6 ms of every 48 ms")
    axes.axvline(50, color="grey", linewidth=0.8, linestyle=":")
    axes.legend()
    figure.savefig(file, dpi=130)


PARTS = {"square-wave": square_wave, "two-services": two_services}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/kernel/run", description=__doc__)
    parser.add_argument("what", choices=["warp"])
    parser.add_argument("--part", choices=PARTS, action="append", help="by default all")
    parser.add_argument("--step", type=int, default=10, help="of the loads, %% (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--figure", type=Path, help="where to draw the square wave, a PNG")
    options = parser.parse_args()
    machine = dataclasses.replace(MACHINES["warp"], timeout_s=7200.0)
    found: dict[str, list[dict[str, Any]]] = {}
    for part in options.part or PARTS:
        try:
            run = run_module(machine, [MODULE, part, str(options.step), "101", str(options.step)])
        except LabError as error:
            print(f"tests/kernel/run: {error}", file=sys.stderr)
            return 2
        if run.trouble or not run.results:
            print(f"tests/kernel/run: {part}: {run.trouble or 'no result'}\n{run.console_end}", file=sys.stderr)
            return 1
        found[part] = PARTS[part](run.results)
        if not options.json:
            print(*map(json.dumps, found[part]), sep="\n")
    if options.json:
        print(json.dumps(found, indent=1))
    if options.figure and "square-wave" in found:
        draw_square_wave(found["square-wave"], options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
