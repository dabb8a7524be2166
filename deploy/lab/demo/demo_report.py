"""The result of a demonstration: as JSON for scripts, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.lab.demo.measure import DemoMeasurement, ServiceUse
from deploy.lab.demo.scene import DemoPhase, Scene
from manager.model.units import percent

ALONE = "alone-pinned"
MAX_P95_OF_ALONE, MAX_P99_OF_ALONE = 1.3, 1.5
MIN_BATCH_OF_WEIGHTED = 0.95
FULL_SHARE = 0.95
MAX_FOREIGN_SHARE = 0.1
MAX_STOLEN_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """A phase, what was measured in it, the SLAs' states at its end, and the batch VMs' rate running by themselves.

    ``warp`` is by what warps were given, as the agent told; None: they were switched off.
    """

    phase: DemoPhase
    measured: DemoMeasurement
    sla_states: Mapping[str, str]
    batch_alone_rate: float
    warp: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Times in microseconds, rates per second, shares 0 .. 1."""
        loads = self.measured.loads
        return {
            "name": self.phase.name,
            "services": {
                name: {
                    **{key: load[key] for key in ("p50_us", "p95_us", "p99_us", "rate_rps", "sent")},
                    "errors": sum(load["errors"].values()),
                    "errors_by_kind": load["errors"],
                    "client_limited": load["client_limited"],
                    "client_lateness_p99_us": load["lateness"]["p99_us"],
                    "sla_state": self.sla_states.get(name, "no_data"),
                    **_per_request(self.measured.use.services.get(name), load["rate_rps"]),
                }
                for name, load in loads.items()
            },
            "host_cpu_share": round(self.measured.use.host_share, 4),
            "batch_share_of_alone": round(self.measured.use.batch_rate / self.batch_alone_rate, 4),
            "batch_pcpus": round(self.measured.use.batch_rate, 4),
            "critical_pcpus": round(self.measured.use.critical_rate, 4),
            "outside_cpu_share": round(self.measured.use.outside_share, 4),
            "stolen_cpu_share": round(self.measured.use.stolen_share, 4),
            "warp": self.warp and {key: self.warp[key] for key in ("mechanism", "detail", "vms")},
            "load_generators_cpu_share": round(sum(load["cpu_share"] for load in loads.values()), 4),
        }


def _per_request(use: ServiceUse | None, rate_rps: float) -> dict[str, float | None]:
    """CPU time of the service's VM, and how often its vCPUs sleep. More of them for a sleep: they waited together."""
    if use is None or not rate_rps:
        return {"cpu_us_per_request": None, "sleeps_per_request": None}
    return {
        "cpu_us_per_request": round(1e6 * use.cpu_rate / rate_rps, 1),
        "sleeps_per_request": round(use.sleeps_rate / rate_rps, 3),
    }


def to_json(
    scene: Scene,
    accelerator: str,
    reason: str,
    duration_s: float,
    phases: Sequence[PhaseResult],
    changed: Sequence[str] | None,
    skipped: Mapping[str, str],
) -> dict[str, Any]:
    """The whole result. ``changed`` are the settings that were not as before at the end; None: all was left running.

    ``skipped`` says why for each phase that was left out.
    """
    return {
        "accelerator": accelerator,
        "accelerator_reason": reason,
        "duration_s": duration_s,
        "managed_cpus": sorted(scene.managed_cpus),
        "load_cpus": sorted(scene.load_cpus),
        "batch_vms": [{"name": vm.name, "vcpus": vm.vcpus} for vm in scene.batch],
        "phases": [phase.to_json() for phase in phases],
        "skipped": dict(skipped),
        "restored": changed is not None and not changed,
        "not_restored": list(changed or ()),
        "kept_running": changed is None,
    }


def verdicts(phases: Sequence[Mapping[str, Any]]) -> list[tuple[bool, str]]:
    """The targets of this demonstration, and whether this run met them."""
    by_name = {phase["name"]: phase for phase in phases}
    found = []
    for name, phase in by_name.items():
        if name != ALONE:
            share = phase["host_cpu_share"]
            found.append(
                (
                    share >= FULL_SHARE,
                    f"{name}: the managed CPUs are full ({percent(share, 1)}, at least {percent(FULL_SHARE)})",
                )
            )
    alone, weighted, protected = (by_name[name] for name in (ALONE, "weighted", "protected"))
    for service in protected["services"]:
        for percentile, most in (("p95", MAX_P95_OF_ALONE), ("p99", MAX_P99_OF_ALONE)):
            before, ratio = (_ratio(phase, alone, service, percentile) for phase in (weighted, protected))
            text = f"{service}'s {percentile} protected is {ratio:.2f} x pinned and alone (at most {most:g} x)"
            found.append((ratio <= most, f"{text}; with weights and pins only {before:.2f} x"))
    kept = protected["batch_share_of_alone"] / max(weighted["batch_share_of_alone"], 1e-9)
    found.append(
        (
            kept >= MIN_BATCH_OF_WEIGHTED,
            f"batch gets {percent(kept)} of what weights and pins only leave it"
            f" (at least {percent(MIN_BATCH_OF_WEIGHTED)})",
        )
    )
    return found


def _ratio(phase: Mapping[str, Any], alone: Mapping[str, Any], service: str, percentile: str) -> float:
    """Infinite where nothing was measured."""
    time_us, alone_us = (each["services"][service][f"{percentile}_us"] for each in (phase, alone))
    return float(time_us) / float(alone_us) if time_us and alone_us else float("inf")


def warp_brought(phases: Sequence[Mapping[str, Any]]) -> list[str]:
    """What warps brought beside equal weights: there is no target, since it depends on the mechanism."""
    by_name = {phase["name"]: phase for phase in phases}
    if "warp" not in by_name:
        return []
    with_warp, warp = by_name["warp"]["services"], by_name["warp"]["warp"]
    if not warp or not warp["vms"]:
        return [f"no warp was in force in the phase warp{': ' + warp['detail'] if warp else ''}"]
    found = []
    for name, load in by_name["equal"]["services"].items():
        if load["p95_us"] and with_warp[name]["p95_us"]:
            ratio = with_warp[name]["p95_us"] / load["p95_us"]
            found.append(
                f"{name}'s p95 with a warp by {warp['mechanism']} is {ratio:.2f} x that at equal weights without"
            )
    return found


def batch_lost_to(phases: Sequence[Mapping[str, Any]]) -> str:
    """Who has the CPU time that batch VMs lose from ``weighted`` to ``protected``.

    Critical VMs may need more where they answer requests one by one than where they wait and answer several at once.
    """
    alone, weighted, protected = (
        next(phase for phase in phases if phase["name"] == name) for name in (ALONE, "weighted", "protected")
    )
    gained, spent = (protected[key] - weighted[key] for key in ("batch_pcpus", "critical_pcpus"))
    return (
        f"protected, batch VMs have {abs(gained):.2f} pCPUs {_more(gained)} than with weights and pins only, and "
        f"critical VMs use {abs(spent):.2f} {_more(spent)}: {protected['critical_pcpus']:.2f}, where they use "
        f"{alone['critical_pcpus']:.2f} alone and {weighted['critical_pcpus']:.2f} while they wait for batch VMs"
    )


def request_costs(phases: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a request costs its VM, by phase: who waits answers several at once, for less CPU time and fewer sleeps."""
    by_name = {phase["name"]: phase["services"] for phase in phases}
    found = []
    for service in by_name[ALONE]:
        costs = {name: by_name[name][service] for name in (ALONE, "weighted", "protected")}
        if all(cost["cpu_us_per_request"] is not None for cost in costs.values()):
            parts = [
                f"{name} {cost['cpu_us_per_request']:.0f} us of CPU time and {cost['sleeps_per_request']:.2f} sleeps"
                for name, cost in costs.items()
            ]
            found.append(f"a request of {service} costs its VM: {', '.join(parts)}")
    return found


def _more(change: float) -> str:
    return "more" if change > 0 else "less"


def print_report(console: Console, result: Mapping[str, Any]) -> None:
    """A table of the phases, then what holds and what does not."""
    slow = ", emulated (TCG): ratios count, not microseconds" if result["accelerator"] == "tcg" else ""
    batch = result["batch_vms"]
    shape = f"{len(batch)} batch VMs of {batch[0]['vcpus']} vCPUs"
    title = f"The same load in {len(result['phases'])} phases, {result['duration_s']:g} s each, {shape}{slow}"
    table = Table(title=title)
    for title in (
        "phase",
        "service",
        "p50",
        "p95",
        "p99",
        "answers/s",
        "errors",
        "SLA",
        "host CPU",
        "batch",
        "outside VMs",
    ):
        table.add_column(title, justify="left" if title in {"phase", "service", "SLA at end"} else "right")
    for phase in result["phases"]:
        shares = (phase["host_cpu_share"], phase["batch_share_of_alone"], phase["outside_cpu_share"])
        for number, (name, load) in enumerate(phase["services"].items()):
            table.add_row(
                "" if number else phase["name"],
                name + (" (!)" if load["client_limited"] else ""),
                *(_time(load[key]) for key in ("p50_us", "p95_us", "p99_us")),
                f"{load['rate_rps']:,.0f}",
                str(load["errors"]),
                load["sla_state"].replace("_", " "),
                *([""] * 3 if number else [percent(share) for share in shares]),
                end_section=number == len(phase["services"]) - 1,
            )
    console.print(table)
    console.print(
        "host CPU: busy share of the managed CPUs; batch: CPU time against running without load beside it;\n"
        "outside VMs: share of all CPUs spent by load generators, Equipoise, libvirt and everything else",
        style="dim",
    )
    if any(load["client_limited"] for phase in result["phases"] for load in phase["services"].values()):
        console.print("(!) the load generator itself was late there: the numbers are partly about it")
    for name, why in result["skipped"].items():
        console.print(f"left out    the phase {name}: {why}", highlight=False)
    phases = result["phases"]
    for text in (batch_lost_to(phases), *request_costs(phases), *warp_brought(phases)):
        console.print(f"seen        {text}", highlight=False)
    print_verdicts(console, result, {phase["name"]: phase for phase in result["phases"]}, verdicts(result["phases"]))


def print_verdicts(
    console: Console,
    result: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    found: Sequence[tuple[bool, str]],
) -> None:
    """Which ``parts`` of a demonstration other programs spoiled, what of it holds, and whether all was restored."""
    for name, part in parts.items():
        foreign = part["outside_cpu_share"] - part["load_generators_cpu_share"] / max(len(result["load_cpus"]), 1)
        if foreign > MAX_FOREIGN_SHARE:
            console.print(f"{name}: {percent(foreign)} of the CPUs went to other programs: do not trust this run")
        if part["stolen_cpu_share"] > MAX_STOLEN_SHARE:
            stolen = percent(part["stolen_cpu_share"])
            console.print(f"{name}: {stolen} of the CPUs' time went to other virtual machines: do not trust this run")
    for holds, text in found:
        console.print(f"{'holds' if holds else 'FALLS SHORT':<12}{text}", highlight=False)
    if result["restored"]:
        console.print("holds       every setting is back to its original", highlight=False)
    elif result["kept_running"]:
        console.print("not seen    whether every setting goes back: all was left running", highlight=False)
    else:
        console.print("FALLS SHORT not everything is as it was:", *result["not_restored"], sep="\n  ", highlight=False)


def _time(time_us: float | None) -> str:
    if time_us is None:
        return "-"
    return f"{time_us:,.0f} us" if time_us < 10_000 else f"{time_us / 1000:,.1f} ms"
