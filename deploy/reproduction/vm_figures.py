"""Figures on real VMs, by the project's demonstrations and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.reproduction.benchmark_process import BenchmarkError, json_of_module, lacks_programs
from deploy.reproduction.experiment import (
    Experiment,
    ExperimentKind,
    FigureNumbers,
    PaperClaim,
    PlotAxes,
    PlotLine,
    RunSetting,
    Study,
    line,
)

ALONE, EQUAL, WEIGHTED, PROTECTED = "alone-pinned", "equal", "weighted", "protected"
PHASES = {ALONE: 1, EQUAL: 2, WEIGHTED: 3, PROTECTED: 4}
_EMULATED = (
    "Where KVM runs nothing the guests are emulated (TCG), many times slower: compare ratios, not milliseconds."
    " Open-loop"
    " load from the same machine."
)


def _demonstration(scenario: str, duration_s: float) -> dict[str, Any]:
    result = json_of_module("deploy.lab.demo", ["--scenario", scenario, "--duration", f"{duration_s:g}", "--no-wait"])
    if not result.get("calibrated", True):
        raise BenchmarkError(
            "no load spike was found that static weights do not bear: run it again on a quieter machine"
        )
    return result


def _notes(result: Mapping[str, Any]) -> tuple[str, ...]:
    notes = [f"guests: {result['accelerator']} ({result['accelerator_reason']})"]
    if not result["restored"]:
        notes.append(f"not restored: {result['not_restored']}")
    return tuple(notes)


def full_host(setting: RunSetting) -> FigureNumbers:
    """Figures 1 and 5 of 2013 with memcached and NGINX: equal weights, weights and pins, and what the product does."""
    result = _demonstration("phases", setting.choose(12.0, 40.0))
    phases = {phase["name"]: phase for phase in result["phases"] if phase["name"] in PHASES}
    services = sorted(phases[ALONE]["services"])
    p95_ms = {
        service: {name: phase["services"][service]["p95_us"] / 1000 for name, phase in phases.items()}
        for service in services
    }
    values: dict[str, float] = {}
    for service in services:
        alone = p95_ms[service][ALONE]
        values |= {f"{service}_{name}": p95_ms[service][name] / alone for name in (EQUAL, WEIGHTED, PROTECTED)}
    values["batch_kept"] = 100 * phases[PROTECTED]["batch_share_of_alone"] / phases[EQUAL]["batch_share_of_alone"]
    lines = tuple(
        PlotLine(service, tuple((float(PHASES[name]), time_ms) for name, time_ms in times.items()))
        for service, times in p95_ms.items()
    )
    return FigureNumbers(lines, values, _notes(result))


def load_spike(setting: RunSetting) -> FigureNumbers:
    """Figures 6 and 7 of 2013 with two NGINX."""
    result = _demonstration("spike", setting.choose(45.0, 120.0))
    runs = {run["policy"]: run["applications"] for run in result["runs"]}
    calm, spiking = sorted(runs["priority"])
    in_spike = {
        policy: {name: seen["parts"]["spike"]["p95_ms"] for name, seen in apps.items()} for policy, apps in runs.items()
    }
    values = {
        "static_violated": 100 * runs["priority"][spiking]["violated_share"],
        "fair_violated": 100 * runs["fair"][spiking]["violated_share"],
        "fair_ratio": in_spike["fair"][spiking] / in_spike["fair"][calm],
        "calm_isolated": in_spike["isolation"][calm] / in_spike["fair"][calm],
    }
    lines = tuple(
        PlotLine(
            f"{name}, {policy}",
            tuple((5.0 * place, ms) for place, ms in enumerate(seen["p95_ms"]) if ms is not None),
        )
        for policy, apps in runs.items()
        for name, seen in apps.items()
        if policy != "isolation"
    )
    return FigureNumbers(lines, values, _notes(result))


def bursts(setting: RunSetting) -> FigureNumbers:
    """Bursts of batch work beside memcached, with and without the guard."""
    size = setting.choose(("--turns", "1", "--seconds", "10"), ("--turns", "3", "--seconds", "20"))
    result = json_of_module("tests.bench.guard_bursts", ["--policy", "equal", *size])
    without, guarded = result["without"], result["with"]
    reactions = sorted(guarded["reactions_ms"])
    values = {"burst_p99": guarded["burst_p99_ms"] / without["burst_p99_ms"]} if without["burst_p99_ms"] else {}
    if reactions:
        values["reaction_ms"] = reactions[len(reactions) // 2]
    points = tuple(
        PlotLine(name, ((1.0, each["p99_ms"]), (2.0, each["burst_p99_ms"])))
        for name, each in (("without the guard", without), ("with the guard", guarded))
        if each["burst_p99_ms"]
    )
    return FigureNumbers(points, values, () if result["restored"] else ("settings were not restored",))


def _lacks() -> str:
    return lacks_programs("virsh", "qemu-system-x86_64", "memcached", "nginx", root=True)


EXPERIMENTS = (
    Experiment(
        "w-fig1-vms",
        Study.WEIGHTS,
        "Figures 1 and 5, on VMs",
        "On a full host equal weights ruin a service, weights help, and pinned as well it is nearly as alone.",
        ExperimentKind.VMS,
        "`deploy/demo`: memcached and NGINX beside batch VMs of two vCPUs on two pCPUs. `weighted` is weights and pins,"
        " `protected` with the batch group, too. " + _EMULATED,
        full_host,
        PlotAxes("1 alone, 2 equal, 3 weighted, 4 protected", "p95, ms", logarithmic=True),
        (line("Wiki", (1, 520), (2, 35_000), (3, 680), (4, 680)),),
        (
            PaperClaim(
                "NGINX: p95 with equal weights over alone",
                "nginx_equal",
                67.0,
                "IV.A: 35 s at a factor of 1.3, against 0.52 s",
                3.0,
                unit="x",
                below="Services here use half of the host, and sleepers of equal weight are served soon.",
            ),
            PaperClaim(
                "NGINX: p95 protected over alone",
                "nginx_protected",
                1.31,
                "IV.E: 0.68 s against 0.52 s",
                0.0,
                1.6,
                "x",
                above="Other work on the machine, or a kernel whose batch VMs delay wake-ups (docs/internals/tail.md).",
            ),
            PaperClaim(
                "memcached: p95 protected over alone",
                "memcached_protected",
                1.31,
                "IV.E",
                0.0,
                1.6,
                "x",
                above="Other work on the machine, or a kernel whose batch VMs delay wake-ups (docs/internals/tail.md).",
            ),
            PaperClaim(
                "batch: CPU time protected over equal weights",
                "batch_kept",
                82.0,
                "IV.A: slowdown of 44 % against 32 %",
                60,
                110,
                "%",
                below="Services of equal weight got little here, so batch had more to lose.",
                above="Batch did not lose to protected services: these waited less for it, and used fewer wake-ups.",
            ),
        ),
        quick_s=0,
        full_s=400,
        lacks=_lacks,
    ),
    Experiment(
        "w-fig6-vms",
        Study.WEIGHTS,
        "Figures 6 and 7, on VMs",
        "When the load of one of two applications rises, static weights violate its SLA; weights by response times"
        " do not.",
        ExperimentKind.VMS,
        "`deploy/demo --scenario spike`: two NGINX and a batch VM on one pCPU; the SLA is what static weights miss,"
        " so that"
        " they violate it by choice of the SLA. " + _EMULATED,
        load_spike,
        PlotAxes("time, s", "p95, ms", logarithmic=True),
        (),
        (
            PaperClaim(
                "priority: intervals in which the spiking one violates its SLA",
                "static_violated",
                18.0,
                "V.B",
                4,
                40,
                "%",
                below="Calibration found an SLA that is missed rarely.",
                above="Calibration found an SLA that is missed often.",
            ),
            PaperClaim(
                "fair: the same",
                "fair_violated",
                0.0,
                "V.B: within the SLA",
                0,
                6,
                "%",
                above="Both applications together want nearly the whole pCPU in the spike: weight cannot save one"
                " without the other.",
            ),
            PaperClaim(
                "fair: p95 of the spiking one over the calm one in the spike",
                "fair_ratio",
                1.0,
                "V.B: similar",
                0.7,
                1.5,
                "x",
                above="The law stops taking weight where that saves nobody.",
                below="The law overshot: the calm application fares worse than the spiking one.",
            ),
            PaperClaim(
                "p95 of the calm one in the spike: isolation over fair",
                "calm_isolated",
                None,
                "V.C",
                0.0,
                0.9,
                "x",
                above="The pCPU had room for the spike after all, so there was nothing to protect the calm one from.",
            ),
        ),
        quick_s=0,
        full_s=620,
        lacks=_lacks,
    ),
    Experiment(
        "c-bursts-vms",
        Study.CALADAN,
        "Slides 5 to 8, on VMs",
        "Bursts of a background task ruin the tail within far less than what PARTIES and Heracles take to react.",
        ExperimentKind.VMS,
        "`python -m tests.bench.guard_bursts --policy equal`: batch VMs that work for 100 ms every 2 s beside"
        " memcached,"
        " with and without the guard. " + _EMULATED,
        bursts,
        PlotAxes("1 all the time, 2 in bursts", "p99, ms", logarithmic=True),
        (),
        (
            PaperClaim(
                "p99 in bursts: with the guard over without",
                "burst_p99",
                None,
                "slides 8, 11: reacting soon keeps the tail",
                0.0,
                0.9,
                "x",
                above="The guard looks every 50 ms, so half of a burst of 100 ms is over before it acts.",
            ),
            PaperClaim(
                "median reaction, ms",
                "reaction_ms",
                0.1,
                "slide 8: 100 us are left to react; PARTIES and Heracles take 10 to 30 s",
                0.0,
                1000.0,
                above="The guard's thread waited for a CPU beside the VMs that it watches.",
            ),
        ),
        quick_s=0,
        full_s=240,
        lacks=_lacks,
    ),
)
