"""p95, weights and CPU over time, a column for each run or phase, in the manner of the study's Figures 6 and 7."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73")  # told apart by everybody: Okabe and Ito's


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Write a PNG. Raises OSError when that fails."""
    mpl.use("agg")
    runs, interval_s, third_s = result["runs"], result["interval_s"], result["duration_s"] / 3
    figure = Figure(figsize=(5 * len(runs), 9), layout="constrained")
    panels = figure.subplots(3, len(runs), sharex=True, sharey="row", squeeze=False)
    for column, run in enumerate(runs):
        time, weight, cpu = (panels[row][column] for row in range(3))
        for colour, (name, seen) in zip(COLOURS, run["applications"].items(), strict=False):
            _line(time, seen["p95_ms"], interval_s, colour, name)
            _line(weight, seen["weights"], interval_s, colour, name)
            _line(cpu, seen["cpu_share"], interval_s, colour, name)
            time.axhline(seen["sla_ms"], color="black", linestyle="--", linewidth=1)
        _line(cpu, run["batch_cpu_share"], interval_s, COLOURS[2], "batch")
        _line(cpu, run["host_cpu_share"], interval_s, "black", "host")
        for panel in (time, weight, cpu):
            panel.axvspan(third_s, 2 * third_s, color="0.92", zorder=0)
        time.set_title(run["policy"])
        cpu.set_xlabel("seconds (grey: the spike)")
    panels[0][0].set_ylabel("p95, ms (dashed: SLA)")
    panels[1][0].set_ylabel("CPU weight")
    panels[2][0].set_ylabel("share of a pCPU")
    panels[0][0].set_yscale("log")
    panels[1][0].set_yscale("log")
    for row in range(3):
        panels[row][0].legend(loc="upper left", fontsize="small")
    if result["accelerator"] == "tcg":
        figure.suptitle("emulated guests (TCG): compare runs, not milliseconds")
    figure.savefig(file, dpi=100)


def draw_autopilot(result: Mapping[str, Any], file: Path) -> None:
    """Write p95 over time of each phase, and what batch VMs had, as PNG or SVG. Raises OSError when that fails."""
    mpl.use("agg")
    phases, turn_s = result["phases"], result["turn_s"]
    figure = Figure(figsize=(3.4 * len(phases), 6), layout="constrained")
    panels = figure.subplots(2, len(phases), sharex=True, sharey="row", squeeze=False)
    for column, phase in enumerate(phases):
        time, cpu = (panels[row][column] for row in range(2))
        for colour, (name, seen) in zip(COLOURS, phase["services"].items(), strict=False):
            _line(time, seen["p95_ms"], result["interval_s"], colour, name)
            time.axhline(seen["sla_ms"], color=colour, linestyle="--", linewidth=1)
        _line(cpu, phase["batch_pcpus"], result["cpu_every_s"], COLOURS[2], "batch")
        for panel in (time, cpu):
            panel.axvspan(turn_s / 3, 2 * turn_s / 3, color="0.92", zorder=0)
            panel.axvline(2 * turn_s / 3, color="black", linestyle=":", linewidth=1)
        time.set_title(phase["name"])
        cpu.set_xlabel("s (grey: spike; dotted: new batch VM)")
    panels[0][0].set_ylabel("p95, ms (dashed: SLA)")
    panels[0][0].set_yscale("log")
    panels[1][0].set_ylabel("pCPUs of batch VMs")
    panels[0][0].legend(loc="upper right", fontsize="small")
    if result["accelerator"] == "tcg":
        figure.suptitle(f"all of {result['turns']} turns; emulated guests (TCG): compare phases, not milliseconds")
    figure.savefig(file, dpi=80)


def _line(panel: Any, values: list[float | None], interval_s: float, colour: str, label: str) -> None:
    at_s = [(place + 0.5) * interval_s for place in range(len(values))]
    panel.plot(at_s, [float("nan") if value is None else value for value in values], color=colour, label=label)
