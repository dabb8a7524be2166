"""Figures 5, 6 and 9 of the 2014 study in a booted kernel, with Equipoise's scheduler and its warps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.reproduction.benchmark_process import json_of_module, lacks_programs
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

MODES = {"alone": "alone", "eevdf": "EEVDF", "bvt": "BVT, no warp", "bvt-warp": "BVT with warp"}
MAPS = {"eevdf": "EEVDF", "fifo-quota": "SCHED_FIFO with quotas", "bvt-warp": "BVT with warps"}
_MACHINE = (
    "`tests/kernel/run warp`: an emulated machine with one CPU whose clock counts instructions, so that results do not"
    " depend on this machine; a kernel with sched_ext of a Debian."
)


def _results(part: str, setting: RunSetting, step: int) -> Sequence[Mapping[str, Any]]:
    arguments = ["warp", "--part", part, "--step", str(step), "--seed", str(setting.seed)]
    results: Sequence[Mapping[str, Any]] = json_of_module("tests.kernel.experiments", arguments, to_stdout=True)[part]
    return results


def square_wave(setting: RunSetting) -> FigureNumbers:
    """Figure 5."""
    results = _results("square-wave", setting, 20)
    p99_ms = {
        mode: {each["load_percent"]: each["p99_us"] / 1000 for each in results if each["mode"] == mode}
        for mode in MODES
    }
    lines = tuple(PlotLine(MODES[mode], tuple(sorted(points.items()))) for mode, points in p99_ms.items())
    alone = p99_ms["alone"]
    low = [load for load in alone if load <= 50]
    values = {
        "default_to_alone": max(p99_ms["eevdf"][load] / alone[load] for load in low),
        "warp_to_alone": max(p99_ms["bvt-warp"][load] / alone[load] for load in low),
        "warp_90": p99_ms["bvt-warp"][90] / alone[90],
    }
    return FigureNumbers(lines, values)


def schedulers(setting: RunSetting) -> FigureNumbers:
    """Figure 9, and with its first column Figure 6: up to which sum of loads both services meet their bars."""
    results = _results("two-services", setting, 20)
    lines, values = [], {}
    for mode, name in MAPS.items():
        seen = [each for each in results if each["mode"] == mode]
        both = [(each["fast_percent"], each["slow_percent"]) for each in seen if len(each["meets"]) == 2]
        lines.append(PlotLine(f"both, {name}", tuple((float(fast), float(slow)) for fast, slow in both)))
        fails = [each["fast_percent"] + each["slow_percent"] for each in seen if len(each["meets"]) < 2]
        values[mode] = float(min(fails, default=200) - 20)
        values[f"{mode} pairs"] = float(len(both))
    values["more_pairs"] = values["bvt-warp pairs"] / max(values["eevdf pairs"], 1.0)
    return FigureNumbers(tuple(lines), values)


EXPERIMENTS = (
    Experiment(
        "r-fig5",
        Study.RECONCILING,
        "Figure 5",
        "Beside 6 ms of every 48 ms the default scheduler breaks the tail at low load; BVT with a warp is as if alone.",
        ExperimentKind.KERNEL,
        _MACHINE + " A service that wakes up every 1 ms; the default scheduler is EEVDF, where theirs was CFS.",
        square_wave,
        PlotAxes("load of the service, % of the CPU", "p99, ms", logarithmic=True),
        (),
        (
            PaperClaim(
                "default scheduler: largest p99 over alone, up to 50 % load",
                "default_to_alone",
                None,
                "3.2.5: exceptionally long tail from 12 % on",
                2.0,
                unit="x",
                below="EEVDF treats a service that wakes up often better than CFS did.",
            ),
            PaperClaim(
                "BVT with warp: the same",
                "warp_to_alone",
                1.0,
                "4.3.4: no unacceptable tail up to 50 % load",
                0.0,
                1.3,
                "x",
                above="The warp was not long enough for the antagonist's 6 ms.",
            ),
            PaperClaim(
                "BVT with warp: p99 over alone at 90 % load",
                "warp_90",
                None,
                "Figure 5: long latencies beyond its share of the CPU",
                1.5,
                unit="x",
                below="At 90 % and 12.5 % the two want little more than the CPU.",
            ),
        ),
        quick_s=0,
        full_s=150,
        lacks=lambda: lacks_programs("gcc", "qemu-system-x86_64", root=True),
    ),
    Experiment(
        "r-fig9",
        Study.RECONCILING,
        "Figures 6 and 9",
        "Two services share a core well up to 80 or 90 % with BVT, 70 % with SCHED_FIFO and quotas, hardly with CFS.",
        ExperimentKind.KERNEL,
        _MACHINE
        + " Services of 0.1 and 1 ms, warps `auto`; the points are pairs of loads at which both meet their bars.",
        schedulers,
        PlotAxes("load of the 0.1 ms service, %", "load of the 1 ms service, %"),
        (),
        (
            PaperClaim(
                "BVT with warps: sum of loads below which both always meet theirs, %",
                "bvt-warp",
                80.0,
                "4.3.4: 80 to 90 %",
                60,
                100,
                below="In steps of 20 %, one pair at 80 % that fails by chance moves the limit to 60 %"
                " (docs/internals/warps.md has the odds).",
                above="The bars are 5 times p95 at low load, which a loaded queue alone stays below for longer here.",
            ),
            PaperClaim(
                "SCHED_FIFO with quotas: the same, %",
                "fifo-quota",
                70.0,
                "4.3.3: 70 %",
                50,
                80,
                below="Quotas are enforced by a process that stops and continues the services, later than a kernel"
                " would.",
                above="In steps of 20 % the first pair that fails may lie beyond theirs.",
            ),
            PaperClaim(
                "pairs at which both meet theirs: BVT with warps over the default",
                "more_pairs",
                None,
                "Figure 9",
                1.2,
                unit="x",
                below="EEVDF does better than CFS did: both meet theirs at nearly as many pairs.",
            ),
        ),
        quick_s=0,
        full_s=420,
        lacks=lambda: lacks_programs("gcc", "qemu-system-x86_64", root=True),
    ),
)
