"""The demonstration of a load spike: two applications that compete for a pCPU, under three policies.

After Blagodurov et al., IM 2013, section V: the second application's load rises for a third of the time. Static
priorities, `fair` and `isolation` meet the same load, arrivals included. The run with static priorities is repeated
with higher spikes until it shows an SLA that they miss; where none does, that is the result, and a failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from deploy.lab.commands import LabError
from deploy.lab.demo.calibrate import SPIKES, calibrate, judged, static_of, violated_share
from deploy.lab.demo.measure import CpuReading, Meter, measure
from deploy.lab.demo.scene import CALM, SPIKING, WARMUP_S, Scene, spike_scene, with_sla, with_spike
from deploy.lab.demo.stage import Stage, paused, progress_bar, set_up
from deploy.lab.demo.stretches import p95_ms, stretches
from deploy.lab.lab_vms import LabHost

STATIC = "priority"
POLICIES = (STATIC, "fair", "isolation")
DEFAULT_RUN_S = 120.0
CALM_S = 15.0
PROBE_RPS, PROBE_S, PROBES, ENOUGH_OFFERED = 100.0, 5.0, 3, 0.8
PROBE_EASED = 4.0
"""By what the load of a probe is smaller after one of which nothing was answered."""
PARTS = ("before", "spike", "after")


@dataclass
class Series:
    """What was seen during one run: response times pushed by service, and CPU readings and weights at each interval."""

    pushed: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    cpu: list[CpuReading] = field(default_factory=list)
    weights: list[Mapping[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def play(
    console: Console,
    stack: ExitStack,
    duration_s: float,
    keep: bool,
    calm_s: float = CALM_S,
    spikes: Sequence[float] = SPIKES,
) -> dict[str, Any]:
    """Run the load once under each policy, ``duration_s`` each, and give the result as JSON. Raises EquipoiseError.

    ``calm_s`` without load go before each, so that none begins with what is left of the one before. ``spikes`` are
    tried in that order; where none shows an SLA that static weights miss, ``calibrated`` is false and only these ran.
    """
    each_s = calm_s + WARMUP_S + duration_s
    capacities: list[float] = []

    def tune(scene: Scene, lab: LabHost, meter: Meter) -> Scene:
        with paused(lab, scene.batch):
            capacities.append(_capacity_rps(scene, meter))
        console.print(f"      one application serves {capacities[0]:.0f} requests/s; loads are set by that")
        return spike_scene(capacities[0])

    stage = set_up(console, stack, spike_scene(PROBE_RPS), tune)
    tried: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=(len(spikes) + len(POLICIES) - 1) * each_s)

        def run(stage: Stage, policy: str, says: str) -> dict[str, Any]:
            start_s = (len(tried) + len(runs)) * each_s
            progress.update(task, completed=start_s, description=f"{policy}: {says}")
            if not console.is_terminal:
                console.print(f"      {policy}: {duration_s:g} s, {says}")
            stage.service.control({"policy": policy, "pinning": False})
            time.sleep(calm_s)
            at_s = start_s + calm_s
            return _run(stage, policy, duration_s, lambda gone_s: progress.update(task, completed=at_s + gone_s))

        static: dict[str, Any] = {}
        sla_ms = None
        for times in spikes:
            stage = replace(stage, scene=with_spike(stage.scene, times))
            static = run(stage, STATIC, f"the load of {SPIKING} is {times:g} x in the middle third")
            found = calibrate(static_of(static, CALM, SPIKING))
            tried.append({"spike": times, "sla_ms": found.sla_ms, "why": found.why})
            console.print(f"      {found.why}", highlight=False)
            sla_ms = found.sla_ms
            if sla_ms is not None:
                break
        if sla_ms is not None:
            static = judged(static, sla_ms)
            stage = replace(stage, scene=with_sla(stage.scene, sla_ms))
            stage.service.promise(stage.scene.services)
            runs = [run(stage, policy, "the same load") for policy in POLICIES if policy != STATIC]
        progress.update(task, completed=progress.tasks[0].total, description="done")
    runs = [static, *runs]
    changed = stage.close(keep)
    return {
        "scenario": "spike",
        "accelerator": stage.accelerator.accelerator,
        "accelerator_reason": stage.accelerator.reason,
        "duration_s": duration_s,
        "interval_s": stage.scene.interval_s,
        "capacity_rps": round(capacities[0], 1),
        "managed_cpus": sorted(stage.scene.managed_cpus),
        "load_cpus": sorted(stage.scene.load_cpus),
        "calibrated": sla_ms is not None,
        "calibration": tried,
        "runs": runs,
        "restored": changed is not None and not changed,
        "not_restored": list(changed or ()),
        "kept_running": changed is None,
    }


def _capacity_rps(scene: Scene, meter: Meter) -> float:
    """Requests/s that the first application serves by itself: the most it answered of ever more. Raises LabError."""
    answered: list[float] = []
    offered_rps = PROBE_RPS
    while not answered or answered[-1] > ENOUGH_OFFERED * offered_rps / 2:
        for _ in range(PROBES):  # a machine with other work may stand still for that long, or drown in such a load
            rate_rps = _answered_rps(scene, meter, offered_rps)
            if rate_rps or answered:
                break
            offered_rps /= PROBE_EASED
        else:
            name = scene.services[0].name
            raise LabError(f"{name} answered nothing in {PROBES * PROBE_S:g} s: is this machine busy with else?")
        answered.append(rate_rps)
        offered_rps *= 2
    return max(answered)  # far above what it can serve it may serve less


def _answered_rps(scene: Scene, meter: Meter, offered_rps: float) -> float:
    """Requests/s that the first application answers by itself of so many."""
    probe = replace(scene.services[0], rate_rps=offered_rps)
    alone = replace(scene, services=(probe,))
    measured = measure(alone, meter, PROBE_S, lambda _name, _interval: None, lambda _gone_s: None)
    return float(measured.loads[probe.name]["rate_rps"])


def _run(stage: Stage, policy: str, duration_s: float, progress: Any) -> dict[str, Any]:
    series = Series()
    began = time.time() + WARMUP_S

    def push(service: str, interval: Mapping[str, Any]) -> None:
        with series.lock:
            series.pushed.setdefault(service, []).append(interval)
        stage.service.push(service, interval)

    def step(gone_s: float) -> None:
        progress(gone_s)
        if gone_s >= WARMUP_S + len(series.cpu) * stage.scene.interval_s:
            series.cpu.append(stage.meter.read())
            series.weights.append(stage.service.weights())

    measured = measure(stage.scene, stage.meter, duration_s, push, step)
    series.cpu.append(stage.meter.read())
    uses = [stage.meter.use(before, after) for before, after in zip(series.cpu, series.cpu[1:], strict=False)]
    vms_s = [
        {name: (after.vms_s[name] - before.vms_s[name]) / (after.at_s - before.at_s) for name in after.vms_s}
        for before, after in zip(series.cpu, series.cpu[1:], strict=False)
    ]
    return {
        "policy": policy,
        "applications": {
            service.name: {
                **seen_by(
                    series.pushed.get(service.name, []), began, duration_s, service.sla_ms, stage.scene.interval_s
                ),
                "weights": [weights.get(service.vm.name) for weights in series.weights],
                "cpu_share": [round(used[service.vm.name], 4) for used in vms_s],
                "client_limited": measured.loads[service.name]["client_limited"],
                "errors": sum(measured.loads[service.name]["errors"].values()),
            }
            for service in stage.scene.services
        },
        "batch_cpu_share": [round(sum(used[vm.name] for vm in stage.scene.batch), 4) for used in vms_s],
        "host_cpu_share": [round(use.host_share, 4) for use in uses],
        "outside_cpu_share": round(measured.use.outside_share, 4),
        "stolen_cpu_share": round(measured.use.stolen_share, 4),
        "load_generators_cpu_share": round(sum(load["cpu_share"] for load in measured.loads.values()), 4),
    }


def seen_by(
    pushed: Sequence[Mapping[str, Any]], began_s: float, duration_s: float, sla_ms: float, interval_s: float
) -> dict[str, Any]:
    """An application's p95 and rate in each interval, p95 of the three parts, and the share of intervals that violated.

    ``pushed`` are the load generator's histograms, ``began_s`` (seconds since the epoch) the schedule's begin.
    """
    intervals = stretches(pushed, began_s, interval_s, int(duration_s / interval_s))
    times_ms = [p95_ms(histogram) for histogram in intervals]
    thirds = stretches(pushed, began_s, duration_s / 3, 3)
    return {
        "sla_ms": sla_ms,
        "violated_share": violated_share(times_ms, sla_ms),
        "p95_ms": times_ms,
        "rate_rps": [round(histogram.count / interval_s, 2) for histogram in intervals],
        "parts": {
            name: {"p95_ms": p95_ms(part), "count": part.count} for name, part in zip(PARTS, thirds, strict=True)
        },
    }
