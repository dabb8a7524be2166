"""What the load spike showed, for people: a table, and what of the study's result it reproduces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.lab.demo.demo_report import FULL_SHARE, print_verdicts
from deploy.lab.demo.scene import CALM, SPIKING
from manager.model.units import percent

MAX_UNLIKE = 1.5
MAX_HARM = 1.2
MIN_APART = 2.0


def spike_verdicts(runs: list[Mapping[str, Any]]) -> list[tuple[bool, str]]:
    """What the study showed, and whether this run shows it (Blagodurov et al., IM 2013, Figures 6 and 7)."""
    by_policy = {run["policy"]: run["applications"] for run in runs}

    def p95(policy: str, name: str, part: str) -> float:
        return float(by_policy[policy][name]["parts"][part]["p95_ms"] or float("inf"))

    found = []
    for run in runs:
        share = sum(run["host_cpu_share"]) / max(len(run["host_cpu_share"]), 1)
        found.append((share >= FULL_SHARE, f"{run['policy']}: the managed CPU is full ({percent(share, 1)})"))
    sla_ms = by_policy["priority"][SPIKING]["sla_ms"]
    spiking = p95("priority", SPIKING, "spike")
    found.append(
        (spiking > sla_ms, f"static: {SPIKING} violates its SLA in the spike ({spiking:.0f} of {sla_ms:g} ms)")
    )
    both = [p95("fair", name, "spike") for name in (CALM, SPIKING)]
    found.append((max(both) <= sla_ms, f"fair: both keep the SLA in the spike ({both[0]:.0f} and {both[1]:.0f} ms)"))
    unlike = max(both) / min(both)
    found.append((unlike <= MAX_UNLIKE, f"fair: their p95 are alike ({unlike:.2f} x, at most {MAX_UNLIKE:g} x)"))
    apart = p95("isolation", SPIKING, "spike") / p95("isolation", CALM, "spike")
    together = both[1] / both[0]
    pays = apart >= MIN_APART * together
    found.append((pays, f"isolation: {SPIKING} pays, its p95 is {apart:.1f} x {CALM}'s; with fair {together:.1f} x"))
    harm = p95("isolation", CALM, "spike") / p95("isolation", CALM, "before")
    found.append(
        (harm <= MAX_HARM, f"isolation: {CALM}'s p95 in the spike is {harm:.2f} x before (at most {MAX_HARM:g} x)")
    )
    return found


def print_spike_report(console: Console, result: Mapping[str, Any]) -> None:
    """A table of the runs, then what holds and what does not."""
    slow = ", emulated (TCG): ratios count, not milliseconds" if result["accelerator"] == "tcg" else ""
    table = Table(title=f"The same load, {result['duration_s']:g} s under each policy{slow}")
    for title in (
        "policy",
        "application",
        "p95 before",
        "spike",
        "after",
        "SLA violated",
        "weights",
        "host CPU",
        "batch",
    ):
        table.add_column(title, justify="left" if title in {"policy", "application"} else "right")
    for run in result["runs"]:
        shares = [sum(run[key]) / max(len(run[key]), 1) for key in ("host_cpu_share", "batch_cpu_share")]
        for number, (name, seen) in enumerate(run["applications"].items()):
            known = [weight for weight in seen["weights"] if weight is not None]
            table.add_row(
                "" if number else run["policy"],
                name + (" (!)" if seen["client_limited"] else ""),
                *(_time(part["p95_ms"]) for part in seen["parts"].values()),
                percent(seen["violated_share"]),
                f"{min(known):,} to {max(known):,}" if known else "-",
                *([""] * 2 if number else [percent(share) for share in shares]),
                end_section=number == len(run["applications"]) - 1,
            )
    console.print(table)
    console.print(
        "SLA violated: share of intervals; host CPU: busy share of the managed CPU; batch: CPU time of the batch VM",
        style="dim",
    )
    if any(seen["client_limited"] for run in result["runs"] for seen in run["applications"].values()):
        console.print("(!) the load generator itself was late there: the numbers are partly about it")
    for tried in result["calibration"]:
        console.print(f"calibration a spike of {tried['spike']:g} x: {tried['why']}", highlight=False)
    found = spike_verdicts(result["runs"]) if result["calibrated"] else []
    print_verdicts(console, result, {run["policy"]: run for run in result["runs"]}, found)
    if not result["calibrated"]:
        console.print(
            "FAILED      static weights stood every spike that was tried, so there is nothing to compare; other load"
            " on this machine spoils it, too: try again when it is quiet",
            highlight=False,
        )


def _time(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.0f} ms"
