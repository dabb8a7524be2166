"""Boots a guest with sched_ext, runs an experiment in it, prints what came of it and draws it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.lab.commands import LabError
from tests.kernel.machine import run_module
from tests.kernel.machines import MACHINES, with_image

Results = Sequence[dict[str, Any]]
MODULE = "tests.kernel.inside.warp.experiments"
NAMES = {
    "alone": "alone",
    "eevdf": "EEVDF",
    "eevdf-slice": "EEVDF, slice 0.1 ms",
    "bvt": "BVT, no warp",
    "bvt-warp": "BVT with warp",
}
SERVICES = ("fast", "slow")
MAPS = {
    "eevdf": "EEVDF",
    "fifo-quota": "SCHED_FIFO with quotas",
    "bvt-warp": "BVT, warps rate monotonic",
}
MET = {
    SERVICES: ("both", "#2a9d5c"),
    ("fast",): ("only that of 100 us", "#f2c14e"),
    ("slow",): ("only that of 1 ms", "#4d8fcb"),
    (): ("neither", "#b03a48"),
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
        for name in SERVICES
        if each["mode"] == "alone" and name in each
    }
    return [
        each
        if each["mode"] == "peak"
        else {**each, "meets": [name for name in SERVICES if name in each and each[name]["p95_us"] <= bar[name]]}
        for each in results
    ]


def as_it_is(results: Results) -> list[dict[str, Any]]:
    return list(results)


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


def draw_two_services(results: Results, file: Path) -> None:
    """Who meets its bar at which loads, a map each scheduler."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    loads = sorted({each["fast_percent"] for each in results if each["mode"] == "eevdf"})
    half = (loads[1] - loads[0]) / 2
    edges = [loads[0] - half, *(load + half for load in loads)]
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    maps = figure.subplots(1, len(MAPS), sharey=True)
    for axes, (mode, title) in zip(maps, MAPS.items(), strict=True):
        met = {(each["fast_percent"], each["slow_percent"]): each["meets"] for each in results if each["mode"] == mode}
        cells = [[[*MET].index(tuple(met[fast, slow])) for fast in loads] for slow in loads]
        colours = ListedColormap([colour for _, colour in MET.values()])
        axes.pcolormesh(edges, edges, cells, cmap=colours, vmin=-0.5, vmax=len(MET) - 0.5, edgecolors="white")
        axes.plot([0, 80], [80, 0], color="black", linewidth=1, linestyle=":")
        axes.set(title=title, xlabel="service of 100 us, load %", xlim=edges[:: len(loads)])
        axes.set(ylim=edges[:: len(loads)], xticks=loads, yticks=loads)
    maps[0].set_ylabel("service of 1 ms, load %")
    patches = [Patch(color=colour, label=label) for label, colour in MET.values()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(MET))
    figure.suptitle("Whose p95 is at most 5 times that at a load of 10 % alone; dotted: 80 % together")
    figure.savefig(file, dpi=130)


@dataclass(frozen=True, slots=True)
class Part:
    """An experiment: the step of its loads, the machines that it runs in, what is made of its results."""

    step: int
    machines: tuple[str, ...]
    evaluate: Callable[[Results], list[dict[str, Any]]]
    draw: Callable[[Results, Path], None] | None = None


PARTS = {
    "square-wave": Part(10, ("warp",), square_wave, draw_square_wave),
    "two-services": Part(20, ("warp",), two_services, draw_two_services),
    "shares": Part(0, ("warp", "warp_smp"), as_it_is),
    "soak": Part(0, ("warp_smp",), as_it_is),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/kernel/run", description=__doc__)
    parser.add_argument("what", choices=["warp"])
    parser.add_argument("--part", choices=PARTS, action="append", help="by default all")
    parser.add_argument("--step", type=int, help="of the loads, %%; by default 10 and, for two services, 20")
    parser.add_argument("--seed", type=int, default=1, help="of the guest's random numbers and the soak (%(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="of the guest's, for the soak (%(default)s)")
    parser.add_argument("--kernel", type=Path, metavar="IMAGE", help="one with sched_ext, a vmlinuz; else a Debian's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--figures", type=Path, help="a directory for the figures, PNG")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for name in options.part or PARTS:
        part, results = PARTS[name], []
        numbers = (options.step or part.step, options.seed, options.seconds)
        for machine in part.machines:
            guest = dataclasses.replace(MACHINES[machine], timeout_s=36_000.0, seed=options.seed)
            try:
                guest = with_image(guest, options.kernel) if options.kernel else guest
                run = run_module(guest, [MODULE, name, *map(str, numbers)])
            except LabError as error:
                print(f"tests/kernel/run: {error}", file=sys.stderr)
                return 2
            if run.trouble or not run.results:
                print(f"tests/kernel/run: {name}: {run.trouble or 'no result'}\n{run.console_end}", file=sys.stderr)
                return 1
            results += run.results
        found[name] = part.evaluate(results)
        if not options.json:
            print(*map(json.dumps, found[name]), sep="\n", flush=True)
        if options.figures and part.draw:
            part.draw(found[name], options.figures / f"warp-{name}.png")
    if options.json:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
