"""The demonstration of a load spike: two applications that compete for a pCPU, under three policies.

After Blagodurov et al., IM 2013, section V: the second application's load doubles for a third of the time. Static
priorities, `fair` and `isolation` meet the same load, arrivals included.
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
from deploy.lab.demo.measure import CpuReading, Meter, measure
from deploy.lab.demo.scene import WARMUP_S, Scene, spike_scene
from deploy.lab.demo.stage import Stage, paused, progress_bar, set_up
from deploy.lab.vms import LabHost
from manager.model.histogram import Histogram

POLICIES = ("priority", "fair", "isolation")
DEFAULT_RUN_S = 120.0
CALM_S = 15.0
PROBE_RPS, PROBE_S, PROBES, ENOUGH_OFFERED = 100.0, 5.0, 3, 0.8
PARTS = ("before", "spike", "after")


@dataclass
class Series:
    """What was seen during one run: response times pushed by service, and CPU readings and weights at each interval."""

    pushed: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    cpu: list[CpuReading] = field(default_factory=list)
    weights: list[Mapping[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def play(console: Console, stack: ExitStack, duration_s: float, keep: bool, calm_s: float = CALM_S) -> dict[str, Any]:
    """Run the load once under each policy, ``duration_s`` each, and give the result as JSON. Raises EquipoiseError.

    ``calm_s`` without load go before each, so that none begins with what is left of the one before.
    """
    each_s = calm_s + WARMUP_S + duration_s
    capacities: list[float] = []

    def tune(scene: Scene, lab: LabHost, meter: Meter) -> Scene:
        with paused(lab, scene.batch):
            capacities.append(_capacity_rps(scene, meter))
        console.print(f"      one application serves {capacities[0]:.0f} requests/s; loads are set by that")
        return spike_scene(capacities[0])

    stage = set_up(console, stack, spike_scene(PROBE_RPS), tune)
    runs: list[dict[str, Any]] = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(POLICIES) * each_s)
        for number, policy in enumerate(POLICIES):
            start_s = number * each_s
            progress.update(task, completed=start_s, description=f"{policy}: the same load")
            if not console.is_terminal:
                console.print(f"      {policy}: {duration_s:g} s, the load of wiki-2 doubles in the middle third")
            stage.service.control(policy, pinning=False)
            time.sleep(calm_s)
            runs.append(
                _run(
                    stage,
                    policy,
                    duration_s,
                    lambda s, at=start_s + calm_s: progress.update(task, completed=at + s),
                )
            )
        progress.update(task, completed=len(POLICIES) * each_s, description="done")
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
        probe = replace(scene.services[0], rate_rps=offered_rps)
        alone = replace(scene, services=(probe,))
        for _ in range(PROBES):  # a machine with other work may stand still for that long
            load = measure(alone, meter, PROBE_S, lambda _name, _interval: None, lambda _gone_s: None).loads[probe.name]
            if load["rate_rps"] or answered:
                break
        else:
            raise LabError(f"{probe.name} answered nothing in {PROBES * PROBE_S:g} s: is this machine busy with else?")
        answered.append(float(load["rate_rps"]))
        offered_rps *= 2
    return max(answered)  # far above what it can serve it may serve less


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
        "load_generators_cpu_share": round(sum(load["cpu_share"] for load in measured.loads.values()), 4),
    }


def seen_by(
    pushed: Sequence[Mapping[str, Any]], began_s: float, duration_s: float, sla_ms: float, interval_s: float
) -> dict[str, Any]:
    """An application's p95 and rate in each interval, p95 of the three parts, and the share of intervals that missed.

    ``pushed`` are the load generator's histograms, ``began_s`` (seconds since the epoch) the schedule's begin.
    """
    intervals = _merged(pushed, began_s, interval_s, int(duration_s / interval_s))
    times_ms = [_p95_ms(histogram) for histogram in intervals]
    judged = [time_ms for time_ms in times_ms if time_ms is not None]
    thirds = _merged(pushed, began_s, duration_s / 3, 3)
    return {
        "sla_ms": sla_ms,
        "violated_share": round(sum(time_ms > sla_ms for time_ms in judged) / max(len(judged), 1), 4),
        "p95_ms": times_ms,
        "rate_rps": [round(histogram.count / interval_s, 2) for histogram in intervals],
        "parts": {
            name: {"p95_ms": _p95_ms(part), "count": part.count} for name, part in zip(PARTS, thirds, strict=True)
        },
    }


def _merged(pushed: Sequence[Mapping[str, Any]], began_s: float, length_s: float, count: int) -> list[Histogram]:
    """The response times of ``count`` stretches of ``length_s`` seconds."""
    parts = [Histogram()] * count
    for interval in pushed:
        middle_s = (interval["start_epoch_s"] + interval["end_epoch_s"]) / 2
        place = int((middle_s - began_s) // length_s)
        if 0 <= place < count:
            parts[place] = parts[place].merge(Histogram({int(k): v for k, v in interval["buckets"].items()}))
    return parts


def _p95_ms(histogram: Histogram) -> float | None:
    time_us = histogram.percentile_us(95)
    return None if time_us is None else round(time_us / 1000, 3)
