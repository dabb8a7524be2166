"""What the demonstration of memory, disk and network showed, for people: a table, and which bars this run keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.lab.demo.demo_report import print_verdicts
from deploy.lab.demo.resources_scene import ALONE, CPU_ONLY, PROTECTED, UNPROTECTED
from manager.model.numbers import digits

MOST_OF_ALONE = 1.5
"""p95 of the service beside the antagonist, by that without it, where a resource has a knob of its own."""
FAR_ABOVE = 2.0
"""What equal weights reach at least; else the antagonist does no harm, and nothing is shown."""


def resource_verdicts(resource: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """The bars of a resource that has a knob; for the others there is none."""
    by_name = {phase["name"]: phase for phase in resource["phases"]}
    if PROTECTED not in by_name:
        return []
    name, service = resource["resource"], resource["service"]
    found = []
    harmed = ratio(by_name[UNPROTECTED], by_name[ALONE])
    text = f"{name}: at equal weights {service}'s p95 is {harmed:.2f} x alone (at least {FAR_ABOVE:g} x)"
    found.append((harmed >= FAR_ABOVE, text))
    found.append((bool(by_name[PROTECTED]["knobs"]), f"{name}: {', '.join(by_name[PROTECTED]['knobs']) or 'not set'}"))
    kept = ratio(by_name[PROTECTED], by_name[ALONE])
    text = f"{name}: protected, {service}'s p95 is {kept:.2f} x alone (at most {MOST_OF_ALONE:g} x)"
    return [*found, (kept <= MOST_OF_ALONE, f"{text}; for CPU alone {ratio(by_name[CPU_ONLY], by_name[ALONE]):.2f} x")]


def ratio(phase: Mapping[str, Any], alone: Mapping[str, Any]) -> float:
    """Of two phases' p95; infinite where nothing was answered."""
    if phase["p95_ms"] is None or not alone["p95_ms"]:
        return float("inf")
    return float(phase["p95_ms"] / alone["p95_ms"])


def print_resources_report(console: Console, result: Mapping[str, Any], units: Mapping[str, str]) -> None:
    """A table of the resources' phases, then what holds and what does not."""
    slow = ", emulated (TCG): ratios count, not milliseconds" if result["accelerator"] == "tcg" else ""
    table = Table(title=f"The same load for {result['duration_s']:g} s in each phase{slow}")
    for title in ("resource", "phase", "p50", "p95", "p99", "p95 of alone", "answers", "antagonist"):
        table.add_column(title, justify="left" if title in {"resource", "phase"} else "right")
    for resource in result["resources"]:
        name = resource["resource"]
        for number, phase in enumerate(resource["phases"]):
            table.add_row(
                "" if number else f"{name} ({resource['service']})",
                phase["name"] + (" (!)" if phase["client_limited"] else ""),
                *(_time(phase[key]) for key in ("p50_ms", "p95_ms", "p99_ms")),
                f"{ratio(phase, resource['phases'][0]):.2f} x",
                f"{phase['answers']:,}",
                f"{digits(phase['antagonist_per_s'], 4)} {units[name]}",
                end_section=number == len(resource["phases"]) - 1,
            )
    console.print(table)
    if any(phase["client_limited"] for resource in result["resources"] for phase in resource["phases"]):
        console.print("(!) the load generator itself was late there: the numbers are partly about it")
    for name, why in result["skipped"].items():
        console.print(f"not run     {name}: {why}", highlight=False)
    parts = {
        f"{resource['resource']}, {phase['name']}": phase
        for resource in result["resources"]
        for phase in resource["phases"]
    }
    found = [verdict for resource in result["resources"] for verdict in resource_verdicts(resource)]
    print_verdicts(console, result, parts, found)


def _time(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.2f} ms"
