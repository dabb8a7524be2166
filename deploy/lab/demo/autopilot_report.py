"""What the autopilot's demonstration showed, for people: a table, and which of the bars this run keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.lab.demo.autopilot_scene import AUTO, BY_HAND, STATIC
from deploy.lab.demo.autopilot_turns import ENDS
from deploy.lab.demo.demo_report import FULL_SHARE, print_verdicts
from manager.model.units import percent

MOST_S = 5.0
"""From violation to met."""
MOST_OF_HAND, LEAST_BATCH_OF_HAND = 1.05, 0.95


def autopilot_verdicts(phases: list[Mapping[str, Any]]) -> list[tuple[bool, str]]:
    """The bars for `auto`, whether this run keeps them, and whether there was anything to show."""
    by_name = {phase["name"]: phase for phase in phases}
    found = []
    for name, phase in by_name.items():
        share = phase["host_cpu_share"]
        found.append((share >= FULL_SHARE, f"{name}: the managed CPUs are full ({percent(share, 1)})"))
    auto, hand = by_name[AUTO], by_name[BY_HAND.name]
    for name, seen in auto["services"].items():
        before = [time_ms is None or time_ms > seen["sla_ms"] for time_ms in seen["before_p95_ms"]]
        text = f"equal weights violate {name}'s SLA before {AUTO} is set in {sum(before)} of {len(before)} turns"
        found.append((all(before), text))
        longest_s, met = longest(seen)
        text = f"{AUTO}: from violation to met {name} takes {longest_s:g} s at most (at most {MOST_S:g} s)"
        found.append((met and longest_s <= MOST_S, text if met else f"{text}; one was not over at the end of its turn"))
        ratio = end_ratio(auto, hand, name)
        text = f"{AUTO}: {name} ends with {ratio:.2f} x the p95 of the hand-made setting (at most {MOST_OF_HAND:g} x)"
        found.append((ratio <= MOST_OF_HAND, text))
    kept = batch_ratio(auto, hand)
    text = f"{AUTO}: batch ends with {percent(kept)} of what the hand-made setting leaves it"
    return [*found, (kept >= LEAST_BATCH_OF_HAND, f"{text} (at least {percent(LEAST_BATCH_OF_HAND)})")]


def noise_of(phases: list[Mapping[str, Any]]) -> str:
    """How far apart two phases with the same settings end."""
    by_name = {phase["name"]: phase for phase in phases}
    static, hand = by_name[STATIC], by_name[BY_HAND.name]
    services = ", ".join(f"{name}'s p95 {end_ratio(static, hand, name):.2f} x" for name in static["services"])
    batch = percent(batch_ratio(static, hand))
    return f"{STATIC} is the hand-made setting once more, and ends with {services}, batch {batch}"


def longest(service: Mapping[str, Any]) -> tuple[float, bool]:
    """Seconds that a service's longest violation took, 0 without any, and whether all were over in their turns."""
    all_of_it = [violation for turn in service["violations"] for violation in turn]
    return max((violation["length_s"] for violation in all_of_it), default=0.0), all(v["met"] for v in all_of_it)


def cures(service: Mapping[str, Any]) -> list[float]:
    """Seconds from the change of policy until the SLA was met, by turn; 0 where it was met at once."""
    return [
        next((violation["length_s"] for violation in turn if violation["start_s"] == 0), 0.0)
        for turn in service["violations"]
    ]


def end_ratio(phase: Mapping[str, Any], hand: Mapping[str, Any], service: str) -> float:
    """p95 at the end relative to the hand-made setting's; infinite where nothing was answered."""
    time_ms, hand_ms = (each["services"][service]["parts"][ENDS]["p95_ms"] for each in (phase, hand))
    return float(time_ms) / float(hand_ms) if time_ms and hand_ms else float("inf")


def batch_ratio(phase: Mapping[str, Any], hand: Mapping[str, Any]) -> float:
    """Batch VMs' CPU time at the end relative to the hand-made setting."""
    return float(phase["batch_at_end_pcpus"]) / max(float(hand["batch_at_end_pcpus"]), 1e-9)


def print_autopilot_report(console: Console, result: Mapping[str, Any]) -> None:
    """A table of the phases, then what holds and what does not."""
    if not result["calibrated"]:
        for name, why in result["calibration"].items():
            console.print(f"FAILED      {name}: {why}; try again when this machine is quiet", highlight=False)
        print_verdicts(console, result, {}, [])
        return
    slow = ", emulated (TCG): ratios count, not milliseconds" if result["accelerator"] == "tcg" else ""
    table = Table(title=f"The same load, {result['turns']} turns of {result['turn_s']:g} s under each policy{slow}")
    titles = ("policy", "service", "SLA", "p95 cure", "spike", "newcomer", "violated", "met after", "longest", "batch")
    for title in (*titles, "steps a turn"):
        table.add_column(title, justify="left" if title in {"policy", "service", "steps a turn"} else "right")
    for phase in result["phases"]:
        for number, (name, seen) in enumerate(phase["services"].items()):
            longest_s, met = longest(seen)
            table.add_row(
                "" if number else phase["name"],
                name + (" (!)" if seen["client_limited"] else ""),
                _time(seen["sla_ms"]),
                *(_time(part["p95_ms"]) for part in seen["parts"].values()),
                percent(seen["violated_share"]),
                ", ".join(f"{cure_s:g}" for cure_s in cures(seen)) + " s",
                f"{longest_s:g} s" + ("" if met else " +"),
                "" if number else f"{phase['batch_at_end_pcpus']:.2f}",
                "" if number else _steps(phase["steps"]),
                end_section=number == len(phase["services"]) - 1,
            )
    console.print(table)
    console.print(
        "violated: share of half seconds with a p95 above the SLA; met after: from the change of policy, by turn;\n"
        "longest: violation of all turns, + if one was not over; batch: pCPUs of batch VMs at the end of the turns",
        style="dim",
    )
    if any(seen["client_limited"] for phase in result["phases"] for seen in phase["services"].values()):
        console.print("(!) the load generator itself was late there: the numbers are partly about it")
    console.print(f"seen        {noise_of(result['phases'])}", highlight=False)
    parts = {phase["name"]: phase for phase in result["phases"]}
    print_verdicts(console, result, parts, autopilot_verdicts(result["phases"]))


def _steps(turns: list[Mapping[str, int]]) -> str:
    total: Counter[str] = Counter()
    for counts in turns:
        total.update(counts)
    return ", ".join(f"{knob} {count / len(turns):.0f}" for knob, count in sorted(total.items())) or "none"


def _time(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.1f} ms"
